/* uninstall.h: `baton-controller uninstall` (argv[0] is the verb); the result is the exit code. */
#pragma once

int uninstall_main(int argc, char **argv);

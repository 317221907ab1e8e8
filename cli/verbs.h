/* verbs.h: the verbs of `baton`, one file each. argv[0] is the verb's name; the result is the exit
 * code (2: wrong usage). */
#pragma once

int up_main(int argc, char **argv);
int down_main(int argc, char **argv);
int run_main(int argc, char **argv);
int status_main(int argc, char **argv);
int rollout_main(int argc, char **argv);
int drain_main(int argc, char **argv);
int explain_main(int argc, char **argv);
int score_main(int argc, char **argv);

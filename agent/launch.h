/* launch.h: `baton-agent launch`, the entry point of a worker pod: starts one worker process a
 * device, keeps it running, carries roles to it and its status to the agent, drains it at SIGTERM.
 */
#pragma once

int launch_main(int argc, char **argv);

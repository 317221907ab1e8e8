/* plan.h: `baton plan MODEL`: capacity and layout on paper, with formulas; as a table, JSON, or an
 * InferenceDeployment. */
#pragma once

/* argv[0] is "plan". Returns the exit status. */
int cmd_plan(int argc, char **argv);

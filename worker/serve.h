/* serve.h: a worker from start to exit: weights, engine, API, launcher, signals. */
#pragma once
#include "worker/options.h"

/* Runs until drained, told to stop, or left by the launcher. */
int serve(const struct options *o, struct err *e) MUST_CHECK;

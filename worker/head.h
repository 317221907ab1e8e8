/* head.h: the endpoint that gives routers a model's tokenizer and shape. One thread, the loop's. */
#pragma once
#include "lib/io/httpd.h"

void head_reply(struct httpd_req *req, const char *path); /* path NULL: nothing is offered */

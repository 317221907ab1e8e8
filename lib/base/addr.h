/* addr.h: numeric IP addresses, v4 and v6, as sockets want them. Names are not looked up. */
#pragma once
#include "lib/base/err.h"

#include <stdint.h>
#include <sys/socket.h>

/* -EINVAL when `host` is not a numeric address. */
int addr_parse(const char *host, uint16_t port, struct sockaddr_storage *a,
               socklen_t *n) MUST_CHECK;

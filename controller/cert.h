/* cert.h: a self-signed server certificate (P-256), as the external metrics API serves with. Pure
 * but for the clock and randomness of OpenSSL; strings are PEM, on the heap. RFC 5280. */
#pragma once
#include "lib/base/err.h"

#include <stdbool.h>
#include <stddef.h>

#define CERT_DAYS       365
#define CERT_RENEW_DAYS 60

int cert_make(const char *const *names, size_t n, int days, char **cert_pem, char **key_pem,
              struct err *e) MUST_CHECK;
bool cert_expires_soon(const char *cert_pem); /* within CERT_RENEW_DAYS, or it can't be read */
char *cert_base64(const char *text);          /* heap */

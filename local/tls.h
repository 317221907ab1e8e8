/* tls.h: the server's own certificate authority and certificate (EC P-256), made once under
 * data_dir/pki and kept. Key files are 0600. Renewed when less than 30 days are left. Blocking, at
 * start only. */
#pragma once
#include "lib/base/str.h"

struct tls_files {
    char *ca_pem, *cert_pem, *key_pem; /* heap */
};
int tls_load_or_make(const char *pki_dir, const char *host, struct tls_files *out,
                     struct err *e) MUST_CHECK;
void tls_files_fini(struct tls_files *t);

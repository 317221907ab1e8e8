#include "controller/cert.h"

#include "lib/base/str.h"

#include <errno.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static char *text_of(BIO *b)
{
    char *p = NULL;
    long n = BIO_get_mem_data(b, &p);
    return n > 0 ? str_dup((struct str){p, (size_t)n}) : NULL;
}

static int add_extension(X509 *x, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509V3_set_ctx_nodb(&ctx);
    X509V3_set_ctx(&ctx, x, x, NULL, NULL, 0);
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    int rc = e && X509_add_ext(x, e, -1) ? 0 : -EIO;
    X509_EXTENSION_free(e);
    return rc;
}

static char *alt_names(const char *const *names, size_t n)
{
    char *all = xstrdup("");
    for (size_t i = 0; i < n; i++) {
        char *more = xasprintf("%s%sDNS:%s", all, i ? "," : "", names[i]);
        free(all);
        all = more;
    }
    return all;
}

static int fill(X509 *x, EVP_PKEY *key, const char *const *names, size_t n, int days)
{
    uint64_t serial = 0;
    char cn[64];
    snprintf(cn, sizeof cn, "%.63s", names[0]);
    CLEANUP(free_charp) char *sans = alt_names(names, n);
    X509_NAME *subject = X509_get_subject_name(x);
    if (RAND_bytes((unsigned char *)&serial, sizeof serial) != 1 || !X509_set_version(x, 2) ||
        !ASN1_INTEGER_set_uint64(X509_get_serialNumber(x), serial >> 1 | 1) ||
        !X509_gmtime_adj(X509_getm_notBefore(x), -300) || /* clocks differ */
        !X509_time_adj_ex(X509_getm_notAfter(x), days, 0, NULL) ||
        !X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, (const unsigned char *)cn, -1, -1,
                                    0) ||
        !X509_set_issuer_name(x, subject) || !X509_set_pubkey(x, key) ||
        add_extension(x, NID_basic_constraints, "critical,CA:TRUE") ||
        add_extension(x, NID_key_usage, "critical,digitalSignature,keyCertSign") ||
        add_extension(x, NID_ext_key_usage, "serverAuth") ||
        add_extension(x, NID_subject_alt_name, sans) || !X509_sign(x, key, EVP_sha256()))
        return -EIO;
    return 0;
}

int cert_make(const char *const *names, size_t n, int days, char **cert_pem, char **key_pem,
              struct err *e)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *x = X509_new();
    BIO *a = BIO_new(BIO_s_mem()), *b = BIO_new(BIO_s_mem());
    int rc = -EIO;
    if (key && x && a && b && !fill(x, key, names, n, days) && PEM_write_bio_X509(a, x) &&
        PEM_write_bio_PrivateKey(b, key, NULL, NULL, 0, NULL, NULL)) {
        *cert_pem = text_of(a);
        *key_pem = text_of(b);
        rc = *cert_pem && *key_pem ? 0 : -ENOMEM;
    }
    BIO_free(a);
    BIO_free(b);
    X509_free(x);
    EVP_PKEY_free(key);
    return rc ? err_set(e, -rc, "OpenSSL can't make a certificate") : 0;
}

bool cert_expires_soon(const char *cert_pem)
{
    BIO *b = BIO_new_mem_buf(cert_pem, -1);
    X509 *x = b ? PEM_read_bio_X509(b, NULL, NULL, NULL) : NULL;
    time_t then = time(NULL) + (time_t)CERT_RENEW_DAYS * 86400;
    bool soon = !x || X509_cmp_time(X509_get0_notAfter(x), &then) <= 0;
    X509_free(x);
    BIO_free(b);
    return soon;
}

char *cert_base64(const char *text)
{
    size_t n = strlen(text);
    char *out = xmalloc(4 * ((n + 2) / 3) + 1);
    EVP_EncodeBlock((unsigned char *)out, (const unsigned char *)text, (int)n);
    return out;
}

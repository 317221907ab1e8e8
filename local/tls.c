#include "local/tls.h"
#include "lib/base/file.h"

#include "lib/base/rng.h"

#include <errno.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define YEARS_10 (10L * 365 * 24 * 3600)
#define DAYS_30  (30 * 24 * 3600)

static char *bio_text(BIO *b)
{
    char *p;
    long n = BIO_get_mem_data(b, &p);
    return n > 0 ? str_dup((struct str){p, (size_t)n}) : NULL;
}

static char *cert_text(X509 *x)
{
    BIO *b = BIO_new(BIO_s_mem());
    char *out = PEM_write_bio_X509(b, x) ? bio_text(b) : NULL;
    BIO_free(b);
    return out;
}

static char *key_text(EVP_PKEY *k)
{
    BIO *b = BIO_new(BIO_s_mem());
    char *out = PEM_write_bio_PrivateKey(b, k, NULL, NULL, 0, NULL, NULL) ? bio_text(b) : NULL;
    BIO_free(b);
    return out;
}

static X509 *parse_cert(const char *pem)
{
    BIO *b = BIO_new_mem_buf(pem, -1);
    X509 *x = PEM_read_bio_X509(b, NULL, NULL, NULL);
    BIO_free(b);
    return x;
}

static EVP_PKEY *parse_key(const char *pem)
{
    BIO *b = BIO_new_mem_buf(pem, -1);
    EVP_PKEY *k = PEM_read_bio_PrivateKey(b, NULL, NULL, NULL);
    BIO_free(b);
    return k;
}

static bool add_ext(X509 *x, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509V3_set_ctx(&ctx, issuer, x, NULL, NULL, 0);
    X509_EXTENSION *ext = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    bool ok = ext && X509_add_ext(x, ext, -1);
    X509_EXTENSION_free(ext);
    return ok;
}

static X509 *base_cert(EVP_PKEY *key, const char *cn, X509 *issuer)
{
    X509 *x = X509_new();
    uint64_t serial = rng_secret_u64() >> 1;
    X509_set_version(x, 2);
    ASN1_INTEGER_set_uint64(X509_get_serialNumber(x), serial);
    X509_gmtime_adj(X509_getm_notBefore(x), -3600);
    X509_gmtime_adj(X509_getm_notAfter(x), YEARS_10);
    X509_set_pubkey(x, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_UTF8,
                               (const unsigned char *)cn, -1, -1, 0);
    X509_set_issuer_name(x, X509_get_subject_name(issuer ? issuer : x));
    return x;
}

static X509 *make_ca(EVP_PKEY *key)
{
    X509 *x = base_cert(key, "baton-local-ca", NULL);
    if (add_ext(x, x, NID_basic_constraints, "critical,CA:TRUE") &&
        add_ext(x, x, NID_key_usage, "critical,keyCertSign,cRLSign,digitalSignature") &&
        add_ext(x, x, NID_subject_key_identifier, "hash") && X509_sign(x, key, EVP_sha256()))
        return x;
    X509_free(x);
    return NULL;
}

static X509 *make_server(EVP_PKEY *key, const char *host, X509 *ca, EVP_PKEY *ca_key)
{
    X509 *x = base_cert(key, "baton-local", ca);
    CLEANUP(free_charp)
    char *san =
        xasprintf("IP:127.0.0.1,IP:10.96.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,"
                  "DNS:kubernetes.default.svc%s%s",
                  strcmp(host, "127.0.0.1") ? ",IP:" : "", strcmp(host, "127.0.0.1") ? host : "");
    if (add_ext(x, ca, NID_basic_constraints, "critical,CA:FALSE") &&
        add_ext(x, ca, NID_key_usage, "critical,digitalSignature,keyAgreement") &&
        add_ext(x, ca, NID_ext_key_usage, "serverAuth") &&
        add_ext(x, ca, NID_subject_key_identifier, "hash") &&
        add_ext(x, ca, NID_authority_key_identifier, "keyid") &&
        add_ext(x, ca, NID_subject_alt_name, san) && X509_sign(x, ca_key, EVP_sha256()))
        return x;
    X509_free(x);
    return NULL;
}

static bool lasts(const char *pem)
{
    X509 *x = parse_cert(pem);
    time_t soon = time(NULL) + DAYS_30;
    bool ok = x && X509_cmp_time(X509_get0_notAfter(x), &soon) > 0;
    X509_free(x);
    return ok;
}

struct paths {
    char *ca, *ca_key, *cert, *key;
};

static int make_all(const struct paths *p, const char *host, struct err *e)
{
    EVP_PKEY *ca_key = EVP_EC_gen("P-256"), *key = EVP_EC_gen("P-256");
    X509 *ca = ca_key ? make_ca(ca_key) : NULL;
    X509 *cert = ca && key ? make_server(key, host, ca, ca_key) : NULL;
    int rc = 0;
    if (!cert)
        rc = err_set(e, EIO, "OpenSSL could not make a certificate");
    CLEANUP(free_charp) char *ca_text = ca ? cert_text(ca) : NULL;
    CLEANUP(free_charp) char *ca_key_text = ca_key ? key_text(ca_key) : NULL;
    CLEANUP(free_charp) char *text = cert ? cert_text(cert) : NULL;
    CLEANUP(free_charp) char *k_text = key ? key_text(key) : NULL;
    if (!rc)
        rc = file_write(p->ca_key, str_c(ca_key_text), 0600, e);
    if (!rc)
        rc = file_write(p->key, str_c(k_text), 0600, e);
    if (!rc)
        rc = file_write(p->cert, str_c(text), 0644, e);
    if (!rc)
        rc = file_write(p->ca, str_c(ca_text), 0644, e);
    X509_free(ca);
    X509_free(cert);
    EVP_PKEY_free(ca_key);
    EVP_PKEY_free(key);
    return rc;
}

static bool key_parses(const char *pem)
{
    EVP_PKEY *k = parse_key(pem);
    bool ok = k != NULL;
    EVP_PKEY_free(k);
    return ok;
}

static bool read_all(const struct paths *p, struct tls_files *out)
{
    out->ca_pem = file_read(p->ca, 1 << 16, NULL);
    out->cert_pem = file_read(p->cert, 1 << 16, NULL);
    out->key_pem = file_read(p->key, 1 << 16, NULL);
    if (out->ca_pem && out->cert_pem && out->key_pem && lasts(out->cert_pem) &&
        lasts(out->ca_pem) && key_parses(out->key_pem))
        return true;
    tls_files_fini(out);
    return false;
}

int tls_load_or_make(const char *pki_dir, const char *host, struct tls_files *out, struct err *e)
{
    if (mkdir(pki_dir, 0700) && errno != EEXIST)
        return err_set(e, errno, "%s: %s", pki_dir, strerror(errno));
    struct paths p = {xasprintf("%s/ca.crt", pki_dir), xasprintf("%s/ca.key", pki_dir),
                      xasprintf("%s/server.crt", pki_dir), xasprintf("%s/server.key", pki_dir)};
    struct tls_files t = {0};
    int rc = 0;
    if (!read_all(&p, &t)) {
        rc = make_all(&p, host, e);
        if (!rc && !read_all(&p, &t))
            rc = err_set(e, EIO, "%s: certificates can't be read back", pki_dir);
    }
    free(p.ca);
    free(p.ca_key);
    free(p.cert);
    free(p.key);
    if (!rc)
        *out = t;
    return rc;
}

void tls_files_fini(struct tls_files *t)
{
    free(t->ca_pem);
    free(t->cert_pem);
    free(t->key_pem);
    *t = (struct tls_files){0};
}

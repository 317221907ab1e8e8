#include "lib/xfer/auth.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

void auth_mac(const struct auth_secret *s, enum auth_side side,
              const uint8_t hello[CONTROL_HELLO_BYTES], const uint8_t nonce[CONTROL_NONCE_BYTES],
              uint8_t out[CONTROL_MAC_BYTES])
{
    uint8_t text[16 + CONTROL_HELLO_BYTES + CONTROL_NONCE_BYTES] = {0};
    memcpy(text, side == AUTH_CLIENT ? "baton-xfer-cli-1" : "baton-xfer-srv-1", 16);
    memcpy(text + 16, hello, CONTROL_HELLO_BYTES);
    memcpy(text + 16 + CONTROL_HELLO_BYTES, nonce, CONTROL_NONCE_BYTES);
    unsigned n = CONTROL_MAC_BYTES;
    ASSERT(HMAC(EVP_sha256(), s->key, (int)s->n, text, sizeof text, out, &n));
}

bool auth_check(const struct auth_secret *s, enum auth_side side,
                const uint8_t hello[CONTROL_HELLO_BYTES], const uint8_t nonce[CONTROL_NONCE_BYTES],
                const uint8_t mac[CONTROL_MAC_BYTES])
{
    uint8_t want[CONTROL_MAC_BYTES];
    auth_mac(s, side, hello, nonce, want);
    return CRYPTO_memcmp(want, mac, sizeof want) == 0;
}

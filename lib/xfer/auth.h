/* auth.h: both ends of a connection prove that they know the deployment's secret, without showing
 * it: HMAC-SHA256 (RFC 2104) over the client's hello (its nonce, both incarnations, the session,
 * the geometry) and the server's nonce. */
#pragma once
#include "lib/wire/control.h"

enum auth_side { AUTH_CLIENT, AUTH_SERVER };

struct auth_secret {
    uint8_t key[256];
    size_t n;
};

void auth_mac(const struct auth_secret *s, enum auth_side side,
              const uint8_t hello[CONTROL_HELLO_BYTES], const uint8_t nonce[CONTROL_NONCE_BYTES],
              uint8_t out[CONTROL_MAC_BYTES]);
/* In constant time. */
bool auth_check(const struct auth_secret *s, enum auth_side side,
                const uint8_t hello[CONTROL_HELLO_BYTES], const uint8_t nonce[CONTROL_NONCE_BYTES],
                const uint8_t mac[CONTROL_MAC_BYTES]);

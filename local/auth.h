/* auth.h: users and their bearer tokens. data_dir/tokens (0600) has a line a user:
 * token,name,uid,"group,group" (the format of kube-apiserver's static token file); users are added
 * on first use. Tokens of service accounts (TokenRequest) live in memory, are bounded in number and
 * expire. Tokens are compared in constant time. */
#pragma once
#include "local/server_int.h"

struct user {
    char *token, *name, *uid;
    json_t *groups;
    uint64_t expires_ns; /* wall clock; 0: never */
    struct user *next;
};

int auth_load(struct server *s, struct err *e) MUST_CHECK;
void auth_free(struct server *s);
/* The user, made when absent. */
const struct user *auth_user(struct server *s, const char *name, struct err *e);
/* NULL when the token is unknown or expired. */
const struct user *auth_by_token(struct server *s, const char *token);
/* From the Authorization header. NULL: none or wrong. */
const struct user *auth_request(struct server *s, const struct httpd_req *req);
/* A token for a service account. */
const struct user *auth_service_account(struct server *s, const char *ns, const char *name,
                                        const char *sa_uid, uint64_t expires_ns);
json_t *auth_user_info(const struct user *u);                        /* {username, uid, groups} */
char *auth_kubeconfig(const struct server *s, const struct user *u); /* YAML text */

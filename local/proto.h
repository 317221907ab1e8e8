/* proto.h: bodies in Kubernetes' protobuf form (kubectl's typed commands send them) as JSON. The
 * envelope is "k8s\0" and a runtime.Unknown; fields are named by types_proto.c and typed by
 * types.h. Answers are always JSON, which clients accept beside it. What protobuf can't tell from
 * absence (empty strings, zero numbers, false) is left out as JSON's omitempty does, but for fields
 * that are pointers in Go. Source: k8s.io/apimachinery/pkg/runtime/serializer/protobuf and the
 * generated.proto files. */
#pragma once
#include "lib/json/json.h"

#define PROTO_TYPE "application/vnd.kubernetes.protobuf"

/* New reference, or NULL with *e. Nesting and sizes are bounded. */
json_t *proto_decode(struct str body, struct err *e);

extern const char *const proto_table[];

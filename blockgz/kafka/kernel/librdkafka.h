/* The part of librdkafka's public C API that the kernel calls, declared by hand: no header ships with the wheel.
 *
 * The functions are found at run time in the library that confluent-kafka brings along (loader.c), and called as
 * `rdkafka.conf_new()`, which is rd_kafka_conf_new(). A function that is added to the list below is found as well. */
#ifndef BLOCKGZ_LIBRDKAFKA_H
#define BLOCKGZ_LIBRDKAFKA_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_consumer_group_metadata_s rd_kafka_consumer_group_metadata_t;
typedef struct rd_kafka_error_s rd_kafka_error_t;
typedef struct rd_kafka_headers_s rd_kafka_headers_t;
typedef struct rd_kafka_metadata rd_kafka_metadata_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_topic_conf_s rd_kafka_topic_conf_t;

enum { RD_KAFKA_PRODUCER = 0, RD_KAFKA_CONSUMER = 1 };
enum { RD_KAFKA_CONF_OK = 0 };
enum { RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE = 0x8 };
enum { RD_KAFKA_OFFSET_INVALID = -1001 };
enum { RD_KAFKA_MSG_F_COPY = 0x2, RD_KAFKA_MSG_F_BLOCK = 0x4 };

/* Some of rd_kafka_resp_err_t; negative ones are librdkafka's own. */
enum {
    RD_KAFKA_RESP_ERR_NO_ERROR = 0,
    RD_KAFKA_RESP_ERR__FAIL = -196,
    RD_KAFKA_RESP_ERR__CRIT_SYS_RESOURCE = -194,
    RD_KAFKA_RESP_ERR__PARTITION_EOF = -191,
    RD_KAFKA_RESP_ERR__QUEUE_FULL = -184,
    RD_KAFKA_RESP_ERR__FATAL = -150,
};

typedef enum { /* rd_kafka_timestamp_type_t; Kafka counts from -1 */
    RD_KAFKA_TIMESTAMP_NOT_AVAILABLE = 0,
    RD_KAFKA_TIMESTAMP_CREATE_TIME = 1,
    RD_KAFKA_TIMESTAMP_LOG_APPEND_TIME = 2,
} rd_kafka_timestamp_type_t;

typedef struct rd_kafka_message_s {
    int err; /* rd_kafka_resp_err_t; with one, payload is its text */
    rd_kafka_topic_t *rkt;
    int32_t partition;
    void *payload; /* the value, NULL for none */
    size_t len;
    void *key; /* NULL for none */
    size_t key_len;
    int64_t offset;
    void *_private; /* of a delivery report: the message's opaque pointer */
} rd_kafka_message_t;

typedef struct rd_kafka_topic_partition_s {
    char *topic;
    int32_t partition;
    int64_t offset;
    void *metadata;
    size_t metadata_size;
    void *opaque;
    int err;
    void *_private;
} rd_kafka_topic_partition_t;

typedef struct rd_kafka_topic_partition_list_s {
    int cnt;
    int size;
    rd_kafka_topic_partition_t *elems;
} rd_kafka_topic_partition_list_t;

typedef enum { /* rd_kafka_vtype_t: what an argument of rd_kafka_produceva is */
    RD_KAFKA_VTYPE_END = 0,
    RD_KAFKA_VTYPE_TOPIC = 1,
    RD_KAFKA_VTYPE_RKT = 2,
    RD_KAFKA_VTYPE_PARTITION = 3,
    RD_KAFKA_VTYPE_VALUE = 4,
    RD_KAFKA_VTYPE_KEY = 5,
    RD_KAFKA_VTYPE_OPAQUE = 6,
    RD_KAFKA_VTYPE_MSGFLAGS = 7,
    RD_KAFKA_VTYPE_TIMESTAMP = 8,
    RD_KAFKA_VTYPE_HEADER = 9,
    RD_KAFKA_VTYPE_HEADERS = 10,
} rd_kafka_vtype_t;

typedef struct rd_kafka_vu_s {
    rd_kafka_vtype_t vtype;
    union {
        const char *cstr;
        rd_kafka_topic_t *rkt;
        int i;
        int32_t i32;
        int64_t i64;
        struct {
            void *mem;
            size_t size;
        } mem;
        struct {
            const char *name;
            const void *val;
            ssize_t size;
        } header;
        rd_kafka_headers_t *headers;
        void *ptr;
        char _pad[64];
    } u;
} rd_kafka_vu_t;

typedef void rd_kafka_log_cb_t(const rd_kafka_t *, int level, const char *facility, const char *text);
typedef void rd_kafka_error_cb_t(rd_kafka_t *, int error, const char *reason, void *opaque);
typedef void rd_kafka_dr_msg_cb_t(rd_kafka_t *, const rd_kafka_message_t *, void *opaque);

/* FUNCTION(result, name without rd_kafka_, arguments) */
#define LIBRDKAFKA_FUNCTIONS(FUNCTION)                                                                                 \
    FUNCTION(int, version, (void))                                                                                     \
    FUNCTION(const char *, version_str, (void))                                                                        \
    FUNCTION(const char *, err2str, (int))                                                                             \
    FUNCTION(int, error_code, (const rd_kafka_error_t *))                                                              \
    FUNCTION(const char *, error_string, (const rd_kafka_error_t *))                                                   \
    FUNCTION(void, error_destroy, (rd_kafka_error_t *))                                                                \
    FUNCTION(rd_kafka_conf_t *, conf_new, (void))                                                                      \
    FUNCTION(void, conf_destroy, (rd_kafka_conf_t *))                                                                  \
    FUNCTION(int, conf_set, (rd_kafka_conf_t *, const char *name, const char *value, char *error, size_t error_size))  \
    FUNCTION(void, conf_set_opaque, (rd_kafka_conf_t *, void *))                                                       \
    FUNCTION(void, conf_set_log_cb, (rd_kafka_conf_t *, rd_kafka_log_cb_t *))                                          \
    FUNCTION(void, conf_set_error_cb, (rd_kafka_conf_t *, rd_kafka_error_cb_t *))                                      \
    FUNCTION(void, conf_set_dr_msg_cb, (rd_kafka_conf_t *, rd_kafka_dr_msg_cb_t *))                                    \
    FUNCTION(rd_kafka_t *, new, (int type, rd_kafka_conf_t *, char *error, size_t error_size))                         \
    FUNCTION(void, destroy, (rd_kafka_t *))                                                                            \
    FUNCTION(void, destroy_flags, (rd_kafka_t *, int flags))                                                           \
    FUNCTION(const char *, name, (const rd_kafka_t *))                                                                 \
    FUNCTION(void *, opaque, (const rd_kafka_t *))                                                                     \
    FUNCTION(int, set_log_queue, (rd_kafka_t *, rd_kafka_queue_t *))                                                   \
    FUNCTION(int, metadata, (rd_kafka_t *, int all_topics, rd_kafka_topic_t *, const rd_kafka_metadata_t **,           \
                             int timeout_ms))                                                                          \
    FUNCTION(void, metadata_destroy, (const rd_kafka_metadata_t *))                                                    \
    FUNCTION(int, fatal_error, (rd_kafka_t *, char *error, size_t error_size))                                         \
    /* consumers */                                                                                                    \
    FUNCTION(int, poll_set_consumer, (rd_kafka_t *))                                                                   \
    FUNCTION(rd_kafka_queue_t *, queue_get_consumer, (rd_kafka_t *))                                                   \
    FUNCTION(void, queue_destroy, (rd_kafka_queue_t *))                                                                \
    FUNCTION(ssize_t, consume_batch_queue, (rd_kafka_queue_t *, int timeout_ms, rd_kafka_message_t **, size_t most))   \
    FUNCTION(rd_kafka_topic_partition_list_t *, topic_partition_list_new, (int size))                                  \
    FUNCTION(rd_kafka_topic_partition_t *, topic_partition_list_add,                                                   \
             (rd_kafka_topic_partition_list_t *, const char *topic, int32_t partition))                                \
    FUNCTION(void, topic_partition_list_destroy, (rd_kafka_topic_partition_list_t *))                                  \
    FUNCTION(rd_kafka_error_t *, incremental_assign, (rd_kafka_t *, const rd_kafka_topic_partition_list_t *))          \
    FUNCTION(rd_kafka_error_t *, incremental_unassign, (rd_kafka_t *, const rd_kafka_topic_partition_list_t *))        \
    FUNCTION(int, pause_partitions, (rd_kafka_t *, rd_kafka_topic_partition_list_t *))                                 \
    FUNCTION(int, resume_partitions, (rd_kafka_t *, rd_kafka_topic_partition_list_t *))                                \
    FUNCTION(int, consumer_close, (rd_kafka_t *))                                                                      \
    FUNCTION(void, message_destroy, (rd_kafka_message_t *))                                                            \
    FUNCTION(const char *, message_errstr, (const rd_kafka_message_t *))                                               \
    FUNCTION(int64_t, message_timestamp, (const rd_kafka_message_t *, rd_kafka_timestamp_type_t *))                    \
    FUNCTION(int32_t, message_leader_epoch, (const rd_kafka_message_t *))                                              \
    FUNCTION(int, message_headers, (const rd_kafka_message_t *, rd_kafka_headers_t **))                                \
    FUNCTION(int, header_get_all, (const rd_kafka_headers_t *, size_t index, const char **name, const void **value,    \
                                   size_t *size))                                                                      \
    FUNCTION(const char *, topic_name, (const rd_kafka_topic_t *))                                                     \
    /* producers */                                                                                                    \
    FUNCTION(rd_kafka_topic_t *, topic_new, (rd_kafka_t *, const char *topic, rd_kafka_topic_conf_t *))                \
    FUNCTION(void, topic_destroy, (rd_kafka_topic_t *))                                                                \
    FUNCTION(rd_kafka_headers_t *, headers_new, (size_t))                                                              \
    FUNCTION(int, header_add, (rd_kafka_headers_t *, const char *name, ssize_t name_size, const void *value,           \
                               ssize_t size))                                                                          \
    FUNCTION(void, headers_destroy, (rd_kafka_headers_t *))                                                            \
    FUNCTION(rd_kafka_error_t *, produceva, (rd_kafka_t *, const rd_kafka_vu_t *, size_t count))                       \
    FUNCTION(int, poll, (rd_kafka_t *, int timeout_ms))                                                                \
    FUNCTION(int, flush, (rd_kafka_t *, int timeout_ms))                                                               \
    FUNCTION(int, purge, (rd_kafka_t *, int flags))                                                                    \
    FUNCTION(int, outq_len, (rd_kafka_t *))                                                                            \
    FUNCTION(int, error_is_fatal, (const rd_kafka_error_t *))                                                          \
    FUNCTION(int, error_is_retriable, (const rd_kafka_error_t *))                                                      \
    FUNCTION(int, error_txn_requires_abort, (const rd_kafka_error_t *))                                                \
    FUNCTION(rd_kafka_error_t *, init_transactions, (rd_kafka_t *, int timeout_ms))                                    \
    FUNCTION(rd_kafka_error_t *, begin_transaction, (rd_kafka_t *))                                                    \
    FUNCTION(rd_kafka_error_t *, send_offsets_to_transaction,                                                          \
             (rd_kafka_t *, const rd_kafka_topic_partition_list_t *, const rd_kafka_consumer_group_metadata_t *,       \
              int timeout_ms))                                                                                         \
    FUNCTION(rd_kafka_error_t *, commit_transaction, (rd_kafka_t *, int timeout_ms))                                   \
    FUNCTION(rd_kafka_error_t *, abort_transaction, (rd_kafka_t *, int timeout_ms))                                    \
    FUNCTION(rd_kafka_error_t *, consumer_group_metadata_read,                                                         \
             (rd_kafka_consumer_group_metadata_t **, const void *bytes, size_t size))                                  \
    FUNCTION(void, consumer_group_metadata_destroy, (rd_kafka_consumer_group_metadata_t *))

#define LIBRDKAFKA_MEMBER(result, name, arguments) result(*name) arguments;
struct librdkafka {
    LIBRDKAFKA_FUNCTIONS(LIBRDKAFKA_MEMBER)
};
#undef LIBRDKAFKA_MEMBER

/* Filled when the module is imported. */
extern struct librdkafka rdkafka;

#endif

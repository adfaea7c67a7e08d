/* What consumer.c and columns.c share: messages on their way into columns. Nothing here needs the interpreter's lock. */
#ifndef BLOCKGZ_CONSUMER_H
#define BLOCKGZ_CONSUMER_H

#include "arrow_c_data.h"
#include "kernel.h"

/* The columns of some records, in one block of memory with everything that Arrow needs to know of them. */
typedef struct columns columns;

typedef struct {
    columns *columns; /* NULL where the first message has a header key that is not UTF-8, or memory is short */
    size_t taken;     /* of the messages; 0 where memory is short */
    int32_t leader_epoch; /* -1 where it is not known */
} piece;

/* The records from the beginning of `messages` on: up to one whose offset is not above the one before it, whose leader
   epoch is another, with a header key that is not UTF-8, or with which a column would exceed `most_bytes`. */
piece cut_piece(rd_kafka_message_t *const *messages, size_t most, int64_t most_bytes);
void free_columns(columns *);

/* The array, which is the caller's to release from now on. */
struct ArrowArray take_array(columns *);

/* In ms since the epoch, -1 for none, and its type as Kafka counts them. */
int64_t timestamp_of(const rd_kafka_message_t *, int8_t *timestamp_type);

/* Key, value and headers. */
int64_t message_bytes(const rd_kafka_message_t *);

#endif

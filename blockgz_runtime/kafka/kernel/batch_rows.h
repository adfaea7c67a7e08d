/* A batch of index_format.records.SCHEMA as the rows that a producer takes. */
#ifndef BLOCKGZ_BATCH_ROWS_H
#define BLOCKGZ_BATCH_ROWS_H

#include "kernel.h"

/* What stands for an offset in a delivery report without one. */
enum { NO_OFFSET = -1 };

/* A column of bytes from the batch's first row on; `bit` is that row's in `valid`, which is NULL where none is null. */
typedef struct {
    const uint8_t *valid;
    int64_t bit;
    const int32_t *ends;
    const uint8_t *content;
} bytes_column;

/* Borrowed from the batch's Arrow data. */
typedef struct {
    int64_t count;
    const int64_t *timestamps;
    bytes_column keys, values;
    const int32_t *header_ends;
    bytes_column header_keys, header_values;
} batch_rows;

/* `schema` and `array` are the capsules that a batch exports, and have to outlive `rows`. -1 with TypeError where it is
   not of that schema. */
int batch_rows_open(batch_rows *rows, PyObject *schema, PyObject *array);

/* Without the interpreter's lock: produce the rows from `first` on, in order, until one is refused, for which `error`
   is set. The number of rows that were taken. */
int64_t batch_rows_produce(const batch_rows *rows, rd_kafka_t *, rd_kafka_topic_t *, int32_t partition, int64_t first,
                           rd_kafka_error_t **error);

#endif

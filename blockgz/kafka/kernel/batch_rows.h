/* A batch of index_format.records.SCHEMA as the rows that a producer takes. */
#ifndef BLOCKGZ_BATCH_ROWS_H
#define BLOCKGZ_BATCH_ROWS_H

#include "kernel.h"

#include "records.h"

/* What stands for an offset in a delivery report without one. */
enum { NO_OFFSET = -1 };

/* `schema` and `array` are the capsules that a batch exports, and have to outlive `rows`. -1 with TypeError if it is
   not of that schema, with ValueError if its columns are too short. */
int batch_rows_open(struct records *rows, PyObject *schema, PyObject *array);

/* Without the interpreter's lock: produce the rows from `first` on, in order, until one is refused, for which `error`
   is set. The number of rows that were taken. */
int64_t batch_rows_produce(const struct records *rows, rd_kafka_t *, rd_kafka_topic_t *, int32_t partition, int64_t first,
                           rd_kafka_error_t **error);

#endif

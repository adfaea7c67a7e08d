/* The Arrow C data interface: its two structures, as the specification declares them, and what makes such data. */
#ifndef BLOCKGZ_ARROW_C_DATA_H
#define BLOCKGZ_ARROW_C_DATA_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ARROW_FLAG_NULLABLE 2

struct ArrowSchema {
    const char *format;
    const char *name;
    const char *metadata;
    int64_t flags;
    int64_t n_children;
    struct ArrowSchema **children;
    struct ArrowSchema *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};

struct ArrowArray {
    int64_t length;
    int64_t null_count;
    int64_t offset;
    int64_t n_buffers;
    int64_t n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

#define ARROW_BUFFERS 3
#define ARROW_CHILDREN 6

/* What an array or a schema made here owns beside its buffers. A consumer may move children out of it. */
struct arrow_owned_array {
    const void *buffers[ARROW_BUFFERS];
    struct ArrowArray *pointers[ARROW_CHILDREN];
    struct ArrowArray children[ARROW_CHILDREN];
};

struct arrow_owned_schema {
    struct ArrowSchema *pointers[ARROW_CHILDREN];
    struct ArrowSchema children[ARROW_CHILDREN];
};

static void
arrow_release_array(struct ArrowArray *array)
{
    struct arrow_owned_array *owned = array->private_data;
    for (int64_t i = 0; i < array->n_children; i++) {
        if (owned->children[i].release != NULL) {
            owned->children[i].release(&owned->children[i]);
        }
    }
    for (int64_t i = 0; i < array->n_buffers; i++) {
        free((void *)owned->buffers[i]);
    }
    free(owned);
    array->release = NULL;
}

/* An array without its buffers and children; it frees what is put there. -1 without memory. */
static inline int
arrow_make_array(struct ArrowArray *array, int64_t length, int n_buffers, int n_children)
{
    struct arrow_owned_array *owned = calloc(1, sizeof *owned);
    if (owned == NULL) {
        return -1;
    }
    for (int i = 0; i < n_children; i++) {
        owned->pointers[i] = &owned->children[i];
    }
    *array = (struct ArrowArray){
        .length = length,
        .n_buffers = n_buffers,
        .n_children = n_children,
        .buffers = owned->buffers,
        .children = n_children ? owned->pointers : NULL,
        .release = arrow_release_array,
        .private_data = owned,
    };
    return 0;
}

static void
arrow_release_schema(struct ArrowSchema *schema)
{
    struct arrow_owned_schema *owned = schema->private_data;
    for (int64_t i = 0; i < schema->n_children; i++) {
        if (owned->children[i].release != NULL) {
            owned->children[i].release(&owned->children[i]);
        }
    }
    free(owned);
    schema->release = NULL;
}

/* A schema without its children; format and name must live on. -1 without memory. */
static inline int
arrow_make_schema(struct ArrowSchema *schema, const char *format, const char *name, int64_t flags, int n_children)
{
    struct arrow_owned_schema *owned = n_children ? calloc(1, sizeof *owned) : NULL;
    if (n_children && owned == NULL) {
        return -1;
    }
    for (int i = 0; i < n_children; i++) {
        owned->pointers[i] = &owned->children[i];
    }
    *schema = (struct ArrowSchema){
        .format = format,
        .name = name,
        .flags = flags,
        .n_children = n_children,
        .children = n_children ? owned->pointers : NULL,
        .release = arrow_release_schema,
        .private_data = owned,
    };
    return 0;
}

/* The schema of records: index_format/records.py. -1 without memory, and then nothing is to be released. */
static inline int
arrow_make_records_schema(struct ArrowSchema *schema)
{
    if (arrow_make_schema(schema, "+s", "", 0, 6) < 0) {
        return -1;
    }
    struct ArrowSchema **columns = schema->children;
    struct ArrowSchema *headers = columns[5];
    arrow_make_schema(columns[0], "l", "offset", 0, 0);
    arrow_make_schema(columns[1], "l", "timestamp", 0, 0);
    arrow_make_schema(columns[2], "c", "timestamp_type", 0, 0);
    arrow_make_schema(columns[3], "z", "key", ARROW_FLAG_NULLABLE, 0);
    arrow_make_schema(columns[4], "z", "value", ARROW_FLAG_NULLABLE, 0);
    if (arrow_make_schema(headers, "+l", "headers", 0, 1) < 0 ||
        arrow_make_schema(headers->children[0], "+s", "item", 0, 2) < 0) {
        schema->release(schema);
        return -1;
    }
    arrow_make_schema(headers->children[0]->children[0], "u", "key", 0, 0);
    arrow_make_schema(headers->children[0]->children[1], "z", "value", ARROW_FLAG_NULLABLE, 0);
    return 0;
}

#endif

/* What the kernel's files share. */
#ifndef BLOCKGZ_KAFKA_KERNEL_H
#define BLOCKGZ_KAFKA_KERNEL_H

#include "module.h"

#include "librdkafka.h"

#include <pthread.h>

/* loader.c: fill `rdkafka`; -1 with ImportError where there is no librdkafka that is known. */
int load_librdkafka(void);

/* client.c ---- what consumers and producers have in common ---- */

struct log_line;

/* A client of librdkafka. It serves one thread at a time, in the process that made it. */
typedef struct client {
    rd_kafka_t *handle; /* NULL once it is closed */
    pid_t process;
    int is_inside; /* a thread is inside librdkafka without the interpreter's lock */
    pthread_mutex_t log_lock;
    struct log_line *first_line, **next_line;
} client;

/* Made with settings that are a dict of str. `more` sets callbacks, or is NULL; its opaque pointer is `client`.
   -1 with ValueError, whose text is librdkafka's. */
int client_open(client *, int type, PyObject *settings, void (*more)(rd_kafka_conf_t *));

/* Before and after librdkafka is called without the lock: -1 with RuntimeError where it is closed, used by another
   thread, or made by a process that forked this one. */
int client_enter(client *);
void client_leave(client *);

/* The log lines since the last time: a list of (level as in Python's logging, facility, client's name, text). */
PyObject *client_log_lines(client *);

/* A str of any bytes; NULL with an exception. */
PyObject *text_of(const char *);

/* None, or (code, text) of librdkafka's error. */
PyObject *code_result(int code, const char *text);

/* Give everything back. `flags` as of rd_kafka_destroy_flags; the lock is held, and released meanwhile. Nothing in a
   process that was forked from the one that made it: the threads to wait for are not there. */
void client_destroy(client *, int flags);

/* module.c calls these; each registers the types and functions of its file. */
int add_consumer(PyObject *module);
int add_producer(PyObject *module);

#endif

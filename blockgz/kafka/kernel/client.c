/* What consumers and producers have in common: made of settings, used by one thread at a time, their log lines. */
#include "kernel.h"

#include <unistd.h>

struct log_line {
    struct log_line *next;
    int level;
    char *facility, *text;
};

/* librdkafka calls it where the client is served, without the interpreter's lock, and from threads of its own. */
static void
keep_log_line(const rd_kafka_t *handle, int level, const char *facility, const char *text)
{
    client *self = rdkafka.opaque(handle);
    struct log_line *line = calloc(1, sizeof *line);
    if (self == NULL || line == NULL) {
        free(line);
        return;
    }
    line->level = level;
    line->facility = strdup(facility);
    line->text = strdup(text);
    pthread_mutex_lock(&self->log_lock);
    *self->next_line = line;
    self->next_line = &line->next;
    pthread_mutex_unlock(&self->log_lock);
}

static struct log_line *
take_log_lines(client *self)
{
    pthread_mutex_lock(&self->log_lock);
    struct log_line *lines = self->first_line;
    self->first_line = NULL;
    self->next_line = &self->first_line;
    pthread_mutex_unlock(&self->log_lock);
    return lines;
}

static struct log_line *
freed_log_line(struct log_line *line)
{
    struct log_line *next = line->next;
    free(line->facility);
    free(line->text);
    free(line);
    return next;
}

PyObject *
text_of(const char *text)
{
    return PyUnicode_DecodeUTF8(text ? text : "", text ? (Py_ssize_t)strlen(text) : 0, "replace");
}

PyObject *
client_log_lines(client *self)
{
    /* syslog's levels as those of Python's logging */
    static const int levels[] = {50, 50, 50, 40, 30, 20, 20, 10};
    PyObject *list = PyList_New(0);
    for (struct log_line *line = take_log_lines(self); line != NULL; line = freed_log_line(line)) {
        PyObject *facility = text_of(line->facility), *text = text_of(line->text), *entry = NULL;
        if (list != NULL && facility != NULL && text != NULL) {
            const char *name = self->handle ? rdkafka.name(self->handle) : "";
            entry = Py_BuildValue("(iOsO)", levels[line->level & 7], facility, name, text);
        }
        if (list != NULL && (entry == NULL || PyList_Append(list, entry) < 0)) {
            Py_CLEAR(list); /* the other lines are freed as well */
        }
        Py_XDECREF(entry);
        Py_XDECREF(facility);
        Py_XDECREF(text);
    }
    return list;
}

static int
set_all(rd_kafka_conf_t *conf, PyObject *settings)
{
    char error[512];
    PyObject *name, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(settings, &at, &name, &value)) {
        const char *name_text = PyUnicode_AsUTF8AndSize(name, NULL);
        const char *value_text = name_text ? PyUnicode_AsUTF8AndSize(value, NULL) : NULL;
        if (value_text == NULL) {
            return -1;
        }
        if (rdkafka.conf_set(conf, name_text, value_text, error, sizeof error) != RD_KAFKA_CONF_OK) {
            PyErr_SetString(PyExc_ValueError, error);
            return -1;
        }
    }
    return 0;
}

PyObject *
code_result(int code, const char *text)
{
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(is)", code, text);
}

int
client_open(client *self, int type, PyObject *settings, void (*more)(rd_kafka_conf_t *))
{
    char error[512];
    pthread_mutex_init(&self->log_lock, NULL);
    self->next_line = &self->first_line;
    self->process = getpid();
    rd_kafka_conf_t *conf = rdkafka.conf_new();
    if (set_all(conf, settings) < 0) {
        rdkafka.conf_destroy(conf);
        return -1;
    }
    /* Log lines wait in the client's queue, and come where it is served. */
    rdkafka.conf_set(conf, "log.queue", "true", NULL, 0);
    rdkafka.conf_set_log_cb(conf, keep_log_line);
    rdkafka.conf_set_opaque(conf, self);
    if (more != NULL) {
        more(conf);
    }
    Py_BEGIN_ALLOW_THREADS
    self->handle = rdkafka.new (type, conf, error, sizeof error);
    if (self->handle != NULL) {
        rdkafka.set_log_queue(self->handle, NULL);
    }
    Py_END_ALLOW_THREADS
    if (self->handle == NULL) {
        rdkafka.conf_destroy(conf);
        PyErr_SetString(PyExc_ValueError, error);
        return -1;
    }
    return 0;
}

int
client_enter(client *self)
{
    const char *why = self->handle == NULL              ? "it is closed"
                      : self->process != getpid()       ? "another process made it, which forked this one"
                      : self->is_inside                 ? "another thread uses it"
                                                        : NULL;
    if (why != NULL) {
        PyErr_Format(PyExc_RuntimeError, "this client of librdkafka cannot be used: %s", why);
        return -1;
    }
    self->is_inside = 1;
    return 0;
}

void
client_leave(client *self)
{
    self->is_inside = 0;
}

void
client_destroy(client *self, int flags)
{
    rd_kafka_t *handle = self->handle;
    self->handle = NULL;
    if (handle != NULL && self->process == getpid()) {
        Py_BEGIN_ALLOW_THREADS
        rdkafka.destroy_flags(handle, flags);
        Py_END_ALLOW_THREADS
    }
    if (self->next_line != NULL && self->process == getpid()) {
        for (struct log_line *line = take_log_lines(self); line != NULL; line = freed_log_line(line)) {
        }
    }
}

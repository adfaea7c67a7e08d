/* An assign-only consumer: what it fetches are Messages, a run of a partition each, which become columns of records.
 *
 * Messages belong to librdkafka and must not outlive the client. So they know their consumer and keep it alive, and the
 * consumer knows them: `close` takes back what they hold. Runs that are being made into columns are counted instead,
 * and the last of them ends the client. */
#include "consumer.h"

#include "capsules.h"

#include <unistd.h>

typedef struct messages messages;

typedef struct {
    PyObject_HEAD
    client client;
    rd_kafka_queue_t *queue;
    messages *held; /* those that hold something */
    int converting;
    int is_closed;
} consumer;

struct messages {
    PyObject_HEAD
    consumer *from;
    PyObject *topic;
    int32_t partition;
    int64_t num_bytes;
    rd_kafka_message_t **first;
    size_t count;
    messages *next, **in;
};

static PyTypeObject *messages_type, *columns_type;

/* ---- what is held ---- */

static void
destroy_messages(rd_kafka_message_t **first, size_t count)
{
    for (size_t number = 0; number < count; number++) {
        rdkafka.message_destroy(first[number]);
    }
}

/* Take what they hold; the caller destroys it. */
static rd_kafka_message_t **
emptied(messages *self, size_t *count)
{
    rd_kafka_message_t **first = self->first;
    *count = self->count;
    self->first = NULL;
    self->count = 0;
    if (self->in != NULL) {
        *self->in = self->next;
        if (self->next != NULL) {
            self->next->in = self->in;
        }
        self->in = NULL;
    }
    return first;
}

static void
drop(messages *self)
{
    size_t count;
    rd_kafka_message_t **first = emptied(self, &count);
    if (first != NULL && self->from->client.process == getpid()) {
        destroy_messages(first, count);
    }
    free(first);
}

static void
messages_dealloc(PyObject *object)
{
    messages *self = (messages *)object;
    PyTypeObject *type = Py_TYPE(object);
    drop(self);
    Py_XDECREF((PyObject *)self->from);
    Py_XDECREF(self->topic);
    PyObject_Free(object);
    Py_DECREF(type);
}

static Py_ssize_t
messages_length(PyObject *object)
{
    return (Py_ssize_t)((messages *)object)->count;
}

static PyObject *
get_topic(PyObject *object, void *unused)
{
    (void)unused;
    return Py_NewRef(((messages *)object)->topic);
}

static PyObject *
get_partition(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromLong(((messages *)object)->partition);
}

static PyObject *
get_num_bytes(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromLongLong(((messages *)object)->num_bytes);
}

static PyGetSetDef messages_members[] = {
    {"topic", get_topic, NULL, "The name of the topic.", NULL},
    {"partition", get_partition, NULL, "The number of the partition.", NULL},
    {"num_bytes", get_num_bytes, NULL, "Keys, values and headers together.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot messages_slots[] = {
    {Py_tp_doc, "Records of a partition that follow each other, as librdkafka holds them."},
    {Py_tp_dealloc, messages_dealloc},
    {Py_tp_getset, messages_members},
    {Py_sq_length, messages_length},
    {0, NULL},
};

static PyType_Spec messages_spec = {
    .name = "blockgz.kafka._kernel.Messages",
    .basicsize = sizeof(messages),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = messages_slots,
};

/* ---- columns as Python sees them ---- */

typedef struct {
    PyObject_HEAD
    columns *block; /* NULL once they were handed over */
} columns_object;

static void
columns_dealloc(PyObject *object)
{
    columns_object *self = (columns_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->block != NULL) {
        free_columns(self->block);
    }
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyObject *
columns_arrow_c_array(PyObject *object, PyObject *unused_schema)
{
    (void)unused_schema; /* who wants another schema casts: the protocol allows that */
    columns_object *self = (columns_object *)object;
    if (self->block == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "these columns were handed over already");
        return NULL;
    }
    struct ArrowArray array = take_array(self->block);
    self->block = NULL;
    return capsules_of_records(array);
}

static PyMethodDef columns_methods[] = {
    {"__arrow_c_array__", columns_arrow_c_array, METH_VARARGS, "Hand the columns over, once."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot columns_slots[] = {
    {Py_tp_doc, "Records as an Arrow array of index_format.records.SCHEMA."},
    {Py_tp_dealloc, columns_dealloc},
    {Py_tp_methods, columns_methods},
    {0, NULL},
};

static PyType_Spec columns_spec = {
    .name = "blockgz.kafka._kernel.Columns",
    .basicsize = sizeof(columns_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = columns_slots,
};

/* ---- the consumer ---- */

/* The client ends once nothing of it is held or worked on. */
static void
end(consumer *self)
{
    if (self->client.process == getpid() && self->queue != NULL) {
        rdkafka.queue_destroy(self->queue);
    }
    self->queue = NULL;
    client_destroy(&self->client, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
}

static PyObject *
consumer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *settings;
    static char *names[] = {"settings", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!", names, &PyDict_Type, &settings)) {
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    consumer *self = (consumer *)allocate(type, 0);
    if (self == NULL) {
        return NULL;
    }
    if (client_open(&self->client, RD_KAFKA_CONSUMER, settings, NULL) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    rdkafka.poll_set_consumer(self->client.handle);
    self->queue = rdkafka.queue_get_consumer(self->client.handle);
    return (PyObject *)self;
}

static void
consumer_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    end((consumer *)object);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyObject *
consumer_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    consumer *self = (consumer *)object;
    if (self->is_closed) {
        Py_RETURN_NONE;
    }
    if (client_enter(&self->client) < 0) {
        return NULL;
    }
    client_leave(&self->client);
    self->is_closed = 1;
    while (self->held != NULL) {
        drop(self->held);
    }
    if (self->converting == 0) {
        end(self);
    }
    Py_RETURN_NONE;
}

/* -1 with ValueError for a number that no call can mean. */
static int
in_range(long long number, long long least, long long most)
{
    if (number >= least && number <= most) {
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "%lld is not between %lld and %lld", number, least, most);
    return -1;
}

/* A list of (topic, partition, offset), each offset left out where it does not matter. NULL with an exception. */
static rd_kafka_topic_partition_list_t *
partitions_of(PyObject *list)
{
    Py_ssize_t count = PyList_Size(list);
    if (count < 0) {
        return NULL;
    }
    rd_kafka_topic_partition_list_t *found = rdkafka.topic_partition_list_new((int)count);
    for (Py_ssize_t number = 0; number < count; number++) {
        const char *topic;
        int partition;
        long long offset = RD_KAFKA_OFFSET_INVALID;
        if (!PyArg_ParseTuple(PyList_GetItem(list, number), "si|L", &topic, &partition, &offset) ||
            in_range(partition, 0, INT32_MAX) < 0) {
            rdkafka.topic_partition_list_destroy(found);
            return NULL;
        }
        rdkafka.topic_partition_list_add(found, topic, partition)->offset = offset;
    }
    return found;
}

typedef rd_kafka_error_t *(*assigning)(rd_kafka_t *, const rd_kafka_topic_partition_list_t *);
typedef int (*pausing)(rd_kafka_t *, rd_kafka_topic_partition_list_t *);

/* Calls one of the two kinds. None, or (code, text) of librdkafka's error. */
static PyObject *
with_partitions(PyObject *object, PyObject *list, assigning assign, pausing pause)
{
    consumer *self = (consumer *)object;
    rd_kafka_topic_partition_list_t *partitions = partitions_of(list);
    if (partitions == NULL || client_enter(&self->client) < 0) {
        if (partitions != NULL) {
            rdkafka.topic_partition_list_destroy(partitions);
        }
        return NULL;
    }
    rd_kafka_error_t *error = NULL;
    int code = RD_KAFKA_RESP_ERR_NO_ERROR;
    Py_BEGIN_ALLOW_THREADS
    if (assign != NULL) {
        error = assign(self->client.handle, partitions);
    } else {
        code = pause(self->client.handle, partitions);
    }
    rdkafka.topic_partition_list_destroy(partitions);
    Py_END_ALLOW_THREADS
    client_leave(&self->client);
    PyObject *result = error ? code_result(rdkafka.error_code(error), rdkafka.error_string(error))
                             : code_result(code, rdkafka.err2str(code));
    if (error != NULL) {
        rdkafka.error_destroy(error);
    }
    return result;
}

static PyObject *
consumer_assign(PyObject *self, PyObject *partitions)
{
    return with_partitions(self, partitions, rdkafka.incremental_assign, NULL);
}

static PyObject *
consumer_unassign(PyObject *self, PyObject *partitions)
{
    return with_partitions(self, partitions, rdkafka.incremental_unassign, NULL);
}

static PyObject *
consumer_pause(PyObject *self, PyObject *partitions)
{
    return with_partitions(self, partitions, NULL, rdkafka.pause_partitions);
}

static PyObject *
consumer_resume(PyObject *self, PyObject *partitions)
{
    return with_partitions(self, partitions, NULL, rdkafka.resume_partitions);
}

static PyObject *
consumer_ask_leaders(PyObject *object, PyObject *milliseconds)
{
    consumer *self = (consumer *)object;
    long timeout = PyLong_AsLong(milliseconds);
    if ((timeout == -1 && PyErr_Occurred()) || in_range(timeout, 0, INT32_MAX) < 0 || client_enter(&self->client) < 0) {
        return NULL;
    }
    const rd_kafka_metadata_t *metadata = NULL;
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = rdkafka.metadata(self->client.handle, 1, NULL, &metadata, (int)timeout);
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR) {
        rdkafka.metadata_destroy(metadata);
    }
    Py_END_ALLOW_THREADS
    client_leave(&self->client);
    return code_result(code, rdkafka.err2str(code));
}

static PyObject *
consumer_log_lines(PyObject *object, PyObject *unused)
{
    (void)unused;
    return client_log_lines(&((consumer *)object)->client);
}

/* ---- fetching ---- */

static int
is_same_run(const rd_kafka_message_t *one, const rd_kafka_message_t *other)
{
    return !one->err && !other->err && one->rkt == other->rkt && one->partition == other->partition;
}

/* Those at the beginning that make up one entry of the result: records of one partition, or a single event. */
static size_t
run_length(rd_kafka_message_t *const *all, size_t count)
{
    size_t length = 1;
    while (length < count && is_same_run(all[0], all[length])) {
        length++;
    }
    return length;
}

/* Takes over the messages where it succeeds. */
static PyObject *
run_object(consumer *self, rd_kafka_message_t **first, size_t count)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(messages_type, Py_tp_alloc);
    messages *found = (messages *)allocate(messages_type, 0);
    if (found == NULL) {
        return NULL;
    }
    Py_INCREF((PyObject *)self);
    found->from = self;
    found->partition = first[0]->partition;
    found->topic = PyUnicode_FromString(rdkafka.topic_name(first[0]->rkt));
    found->first = malloc(count * sizeof *first);
    if (found->topic == NULL || found->first == NULL) {
        Py_DECREF(found);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    memcpy(found->first, first, count * sizeof *first);
    found->count = count;
    for (size_t number = 0; number < count; number++) {
        found->num_bytes += message_bytes(first[number]);
    }
    found->next = self->held;
    found->in = &self->held;
    if (found->next != NULL) {
        found->next->in = &found->next;
    }
    self->held = found;
    return (PyObject *)found;
}

/* (topic or None, partition, offset, code, text); destroys the message where it succeeds. */
static PyObject *
event_object(rd_kafka_message_t *message)
{
    const char *topic = message->rkt ? rdkafka.topic_name(message->rkt) : NULL;
    PyObject *why = text_of(rdkafka.message_errstr(message));
    PyObject *event = why ? Py_BuildValue("(ziLiO)", topic, (int)message->partition, (long long)message->offset,
                                          message->err, why)
                          : NULL;
    Py_XDECREF(why);
    if (event != NULL) {
        rdkafka.message_destroy(message);
    }
    return event;
}

static PyObject *
entries_of(consumer *self, rd_kafka_message_t **all, size_t count)
{
    PyObject *list = PyList_New(0);
    size_t at = 0;
    while (list != NULL && at < count) {
        size_t length = run_length(all + at, count - at);
        PyObject *entry = all[at]->err ? event_object(all[at]) : run_object(self, all + at, length);
        at += entry ? length : 0;
        if (entry == NULL || PyList_Append(list, entry) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(entry);
    }
    destroy_messages(all + at, count - at); /* none, but after an error */
    return list;
}

static PyObject *
consumer_consume(PyObject *object, PyObject *args)
{
    consumer *self = (consumer *)object;
    int most, milliseconds;
    if (!PyArg_ParseTuple(args, "ii", &most, &milliseconds) || in_range(most, 1, INT32_MAX) < 0 ||
        in_range(milliseconds, 0, INT32_MAX) < 0 || client_enter(&self->client) < 0) {
        return NULL;
    }
    rd_kafka_message_t **all = malloc((size_t)most * sizeof *all);
    ssize_t count = -1;
    if (all != NULL) {
        Py_BEGIN_ALLOW_THREADS
        count = rdkafka.consume_batch_queue(self->queue, milliseconds, all, (size_t)most);
        Py_END_ALLOW_THREADS
    }
    client_leave(&self->client);
    PyObject *list = all ? entries_of(self, all, count < 0 ? 0 : (size_t)count) : PyErr_NoMemory();
    free(all);
    return list;
}

/* ---- columns ---- */

/* Messages that were taken over from the objects that held them, and the pieces they become. */
typedef struct {
    rd_kafka_message_t **all;
    size_t count, done;
    piece *pieces;
    size_t num_pieces, room;
} conversion;

static int
take_over(consumer *self, PyObject *list, conversion *of)
{
    Py_ssize_t length = PyList_Size(list);
    size_t count = 0;
    for (Py_ssize_t number = 0; number < length; number++) {
        messages *each = (messages *)PyList_GetItem(list, number);
        if (Py_TYPE((PyObject *)each) != messages_type || each->from != self) {
            PyErr_SetString(PyExc_TypeError, "not the messages of this consumer");
            return -1;
        }
        count += each->count;
    }
    of->all = length < 0 ? NULL : malloc((count + 1) * sizeof *of->all);
    if (of->all == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_NoMemory();
        }
        return -1;
    }
    for (Py_ssize_t number = 0; number < length; number++) {
        size_t some;
        rd_kafka_message_t **first = emptied((messages *)PyList_GetItem(list, number), &some);
        if (some > 0) {
            memcpy(of->all + of->count, first, some * sizeof *first);
        }
        of->count += some;
        free(first);
    }
    return 0;
}

/* Without the lock. Ends early where memory is short. Messages that are not needed any more are destroyed. */
static void
cut(conversion *of, int64_t most_bytes)
{
    while (of->done < of->count) {
        if (of->num_pieces == of->room) {
            size_t room = of->room ? 2 * of->room : 4;
            piece *larger = realloc(of->pieces, room * sizeof *larger);
            if (larger == NULL) {
                return;
            }
            of->pieces = larger;
            of->room = room;
        }
        piece found = cut_piece(of->all + of->done, of->count - of->done, most_bytes);
        if (found.taken == 0) {
            return;
        }
        if (found.columns != NULL) {
            destroy_messages(of->all + of->done, found.taken);
        }
        of->pieces[of->num_pieces++] = found;
        of->done += found.taken;
    }
}

/* Takes over the columns where it succeeds. */
static PyObject *
columns_of_piece(piece *found)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(columns_type, Py_tp_alloc);
    columns_object *object = (columns_object *)allocate(columns_type, 0);
    if (object == NULL) {
        return NULL;
    }
    object->block = found->columns;
    found->columns = NULL;
    PyObject *epoch = found->leader_epoch < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(found->leader_epoch);
    PyObject *pair = epoch ? PyTuple_Pack(2, (PyObject *)object, epoch) : NULL;
    Py_XDECREF(epoch);
    Py_DECREF(object);
    return pair;
}

/* (offset, timestamp, timestamp type, key, value) */
static PyObject *
unreadable_record(const rd_kafka_message_t *message)
{
    int8_t type;
    int64_t timestamp = timestamp_of(message, &type);
    return Py_BuildValue("(LLiy#y#)", (long long)message->offset, (long long)timestamp, (int)type,
                         (const char *)message->key, (Py_ssize_t)message->key_len, (const char *)message->payload,
                         (Py_ssize_t)message->len);
}

/* The pieces as Python objects. Gives everything back that it took, also where it fails. */
static PyObject *
pieces_list(conversion *of)
{
    PyObject *list = of->done == of->count ? PyList_New(0) : PyErr_NoMemory();
    size_t at = 0;
    for (size_t number = 0; number < of->num_pieces; number++) {
        piece *found = &of->pieces[number];
        int is_unreadable = found->columns == NULL;
        PyObject *entry = NULL;
        if (list != NULL) {
            entry = is_unreadable ? unreadable_record(of->all[at]) : columns_of_piece(found);
        }
        if (list != NULL && (entry == NULL || PyList_Append(list, entry) < 0)) {
            Py_CLEAR(list);
        }
        Py_XDECREF(entry);
        if (found->columns != NULL) {
            free_columns(found->columns);
        }
        if (is_unreadable) {
            rdkafka.message_destroy(of->all[at]);
        }
        at += found->taken;
    }
    destroy_messages(of->all + at, of->count - at);
    return list;
}

static PyObject *
consumer_columns(PyObject *object, PyObject *args)
{
    consumer *self = (consumer *)object;
    PyObject *list;
    long long most_bytes;
    conversion converted = {0};
    /* Arrow's columns of bytes count them with 32 bits. */
    if (!PyArg_ParseTuple(args, "O!L", &PyList_Type, &list, &most_bytes) ||
        in_range(most_bytes, 1, INT32_MAX) < 0 || take_over(self, list, &converted) < 0) {
        return NULL;
    }
    self->converting++;
    Py_BEGIN_ALLOW_THREADS
    cut(&converted, most_bytes);
    Py_END_ALLOW_THREADS
    PyObject *pieces = pieces_list(&converted);
    free(converted.pieces);
    free(converted.all);
    if (--self->converting == 0 && self->is_closed) {
        end(self);
    }
    return pieces;
}

static PyMethodDef consumer_methods[] = {
    {"assign", consumer_assign, METH_O, "Consume a list of (topic, partition, offset) too. None, or (code, text)."},
    {"unassign", consumer_unassign, METH_O, "Consume a list of (topic, partition) no longer. None, or (code, text)."},
    {"pause", consumer_pause, METH_O, "Fetch nothing of a list of (topic, partition). None, or (code, text)."},
    {"resume", consumer_resume, METH_O, "Fetch a list of (topic, partition) again. None, or (code, text)."},
    {"ask_leaders", consumer_ask_leaders, METH_O,
     "Ask who leads partitions, for so many milliseconds at most. None, or (code, text)."},
    {"consume", consumer_consume, METH_VARARGS,
     "At most so many messages, waiting for them for so many milliseconds: a list of Messages and, for what is no\n"
     "record, (topic or None, partition, offset, code, text)."},
    {"columns", consumer_columns, METH_VARARGS,
     "A list of Messages of one partition, emptied into columns of at most about so many bytes each: (Columns, leader\n"
     "epoch or None) for each run whose offsets rise under one epoch, and (offset, timestamp, timestamp type, key,\n"
     "value) for a record with a header key that is not UTF-8."},
    {"log_lines", consumer_log_lines, METH_NOARGS,
     "What librdkafka logged since the last time: (level as in logging, facility, client, text)."},
    {"close", consumer_close, METH_NOARGS, "End the client; what Messages still hold is dropped."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot consumer_slots[] = {
    {Py_tp_doc, "Consumer(settings)\n\nA consumer of directly assigned partitions, made with a dict of librdkafka's\n"
                "settings. Raises ValueError for those that librdkafka refuses. One thread at a time uses it; `columns`\n"
                "may run in others meanwhile."},
    {Py_tp_new, consumer_new},
    {Py_tp_dealloc, consumer_dealloc},
    {Py_tp_methods, consumer_methods},
    {0, NULL},
};

static PyType_Spec consumer_spec = {
    .name = "blockgz.kafka._kernel.Consumer",
    .basicsize = sizeof(consumer),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = consumer_slots,
};

static PyTypeObject *
add_type(PyObject *module, PyType_Spec *spec)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    if (type != NULL && PyModule_AddType(module, type) < 0) {
        Py_CLEAR(type);
    }
    return type;
}

int
add_consumer(PyObject *module)
{
    messages_type = add_type(module, &messages_spec);
    columns_type = add_type(module, &columns_spec);
    PyTypeObject *type = add_type(module, &consumer_spec);
    Py_XDECREF((PyObject *)type);
    return messages_type != NULL && columns_type != NULL && type != NULL ? 0 : -1;
}

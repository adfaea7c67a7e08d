/* Producers: whole batches go in, and what became of them is noted by partition until Python asks for it.
 *
 * `stop` of a sink comes from another thread than `produce`, and a call that does not come back is left to a thread of
 * its own: unlike a consumer, a producer is used by several threads at once, as librdkafka allows. */
#include "batch_rows.h"
#include "kernel.h"

#include <unistd.h>

enum { MOST_ERROR_TEXT = 512 };

/* The acknowledged records of a partition since the last time, in order. */
typedef struct {
    int64_t *offsets;
    size_t count, room;
} lane;

typedef struct error_event {
    struct error_event *next;
    int code, is_fatal;
    char text[MOST_ERROR_TEXT];
} error_event;

typedef struct {
    PyObject_HEAD
    client client; /* librdkafka's opaque pointer is the address of this member */
    rd_kafka_topic_t *topic;
    pthread_mutex_t lock; /* of all below; nobody waits for anything while it is held */
    int has_lock;
    lane *lanes;
    int32_t num_lanes;
    int failure, failed_partition; /* the first record that was not taken; 0 for none */
    error_event *first_event, **next_event;
} producer;

static producer *
producer_of(void *opaque)
{
    return (producer *)((char *)opaque - offsetof(producer, client));
}

/* ---- callbacks: in threads that serve the client, without the interpreter's lock ---- */

static void
fail(producer *self, int32_t partition, int code)
{
    if (self->failure == RD_KAFKA_RESP_ERR_NO_ERROR) {
        self->failure = code;
        self->failed_partition = partition;
    }
}

static lane *
lane_of(producer *self, int32_t partition)
{
    if (partition >= self->num_lanes) {
        lane *lanes = realloc(self->lanes, ((size_t)partition + 1) * sizeof *lanes);
        if (lanes == NULL) {
            return NULL;
        }
        memset(lanes + self->num_lanes, 0, (size_t)(partition + 1 - self->num_lanes) * sizeof *lanes);
        self->lanes = lanes;
        self->num_lanes = partition + 1;
    }
    return &self->lanes[partition];
}

static int
append_offset(lane *to, int64_t offset)
{
    if (to->count == to->room) {
        size_t room = to->room ? 2 * to->room : 1024;
        int64_t *offsets = realloc(to->offsets, room * sizeof *offsets);
        if (offsets == NULL) {
            return -1;
        }
        to->offsets = offsets;
        to->room = room;
    }
    to->offsets[to->count++] = offset < 0 ? NO_OFFSET : offset;
    return 0;
}

static void
note_delivery(rd_kafka_t *handle, const rd_kafka_message_t *message, void *opaque)
{
    (void)handle;
    producer *self = producer_of(opaque);
    pthread_mutex_lock(&self->lock);
    if (message->err != RD_KAFKA_RESP_ERR_NO_ERROR) {
        fail(self, message->partition, message->err);
    }
    else {
        lane *to = lane_of(self, message->partition);
        if (to == NULL || append_offset(to, message->offset) < 0) {
            fail(self, message->partition, RD_KAFKA_RESP_ERR__CRIT_SYS_RESOURCE);
        }
    }
    pthread_mutex_unlock(&self->lock);
}

static void
note_error(rd_kafka_t *handle, int code, const char *reason, void *opaque)
{
    producer *self = producer_of(opaque);
    error_event *event = calloc(1, sizeof *event);
    if (event == NULL) {
        return;
    }
    event->code = code;
    strncpy(event->text, reason ? reason : "", sizeof event->text - 1);
    if (code == RD_KAFKA_RESP_ERR__FATAL) {
        event->code = rdkafka.fatal_error(handle, event->text, sizeof event->text);
        event->is_fatal = 1;
    }
    pthread_mutex_lock(&self->lock);
    *self->next_event = event;
    self->next_event = &event->next;
    pthread_mutex_unlock(&self->lock);
}

static void
set_callbacks(rd_kafka_conf_t *conf)
{
    rdkafka.conf_set_dr_msg_cb(conf, note_delivery);
    rdkafka.conf_set_error_cb(conf, note_error);
}

/* ---- the type ---- */

static PyObject *
producer_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    PyObject *settings;
    const char *topic;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "O!s", &PyDict_Type, &settings, &topic)) {
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    producer *self = (producer *)allocate(type, 0);
    if (self == NULL) {
        return NULL;
    }
    pthread_mutex_init(&self->lock, NULL);
    self->has_lock = 1;
    self->next_event = &self->first_event;
    if (client_open(&self->client, RD_KAFKA_PRODUCER, settings, set_callbacks) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->topic = rdkafka.topic_new(self->client.handle, topic, NULL);
    if (self->topic == NULL) {
        PyErr_Format(PyExc_ValueError, "librdkafka takes no topic %s", topic);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static error_event *
freed_event(error_event *event)
{
    error_event *next = event->next;
    free(event);
    return next;
}

static void
producer_dealloc(PyObject *object)
{
    producer *self = (producer *)object;
    PyTypeObject *type = Py_TYPE(object);
    int is_ours = self->client.process == getpid();
    if (self->topic != NULL && is_ours) {
        rdkafka.topic_destroy(self->topic);
    }
    client_destroy(&self->client, 0);
    for (error_event *event = self->first_event; event != NULL;) {
        event = freed_event(event);
    }
    for (int32_t number = 0; number < self->num_lanes; number++) {
        free(self->lanes[number].offsets);
    }
    free(self->lanes);
    if (self->has_lock && is_ours) {
        pthread_mutex_destroy(&self->lock);
    }
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

/* -1 with RuntimeError in a process that another one forked: librdkafka's threads are not there. */
static int
check_process(producer *self)
{
    if (self->client.process == getpid()) {
        return 0;
    }
    PyErr_SetString(PyExc_RuntimeError, "this producer was made by the process that forked this one");
    return -1;
}

/* None, or (code, text, is fatal, is retriable, needs an abort); gives the error back. */
static PyObject *
error_tuple(rd_kafka_error_t *error)
{
    if (error == NULL) {
        Py_RETURN_NONE;
    }
    PyObject *told = text_of(rdkafka.error_string(error));
    PyObject *made = NULL;
    if (told != NULL) {
        made = Py_BuildValue("(iNOOO)", rdkafka.error_code(error), told,
                             rdkafka.error_is_fatal(error) ? Py_True : Py_False,
                             rdkafka.error_is_retriable(error) ? Py_True : Py_False,
                             rdkafka.error_txn_requires_abort(error) ? Py_True : Py_False);
    }
    rdkafka.error_destroy(error);
    return made;
}

/* ---- producing ---- */

/* produce(partition, schema, array, first) -> (rows taken, error): the rows of a batch from `first` on, as far as the
   queue has room. Copies what it takes. */
static PyObject *
producer_produce(producer *self, PyObject *arguments)
{
    PyObject *schema, *array;
    int partition;
    Py_ssize_t first;
    struct records rows;
    if (!PyArg_ParseTuple(arguments, "iOOn", &partition, &schema, &array, &first) || check_process(self) < 0 ||
        batch_rows_open(&rows, schema, array) < 0) {
        return NULL;
    }
    if (partition < 0 || first < 0 || first > rows.count) {
        PyErr_Format(PyExc_ValueError, "no partition %d, or no row %zd in a batch of %lld", partition, first,
                     (long long)rows.count);
        return NULL;
    }
    rd_kafka_error_t *error = NULL;
    int64_t taken;
    Py_BEGIN_ALLOW_THREADS
    taken = batch_rows_produce(&rows, self->client.handle, self->topic, partition, first, &error);
    Py_END_ALLOW_THREADS
    if (error != NULL && rdkafka.error_code(error) == RD_KAFKA_RESP_ERR__QUEUE_FULL) {
        rdkafka.error_destroy(error);
        error = NULL;
    }
    PyObject *told = error_tuple(error);
    return told ? Py_BuildValue("(LN)", (long long)taken, told) : NULL;
}

static PyObject *
lane_bytes(lane *from)
{
    return PyBytes_FromStringAndSize((const char *)from->offsets, (Py_ssize_t)(from->count * sizeof *from->offsets));
}

/* delivered() -> {partition: int64 offsets as bytes}: what was acknowledged since the last call, in order. */
static PyObject *
producer_delivered(producer *self, PyObject *none)
{
    (void)none;
    pthread_mutex_lock(&self->lock);
    lane *lanes = self->lanes;
    int32_t num_lanes = self->num_lanes;
    self->lanes = NULL;
    self->num_lanes = 0;
    pthread_mutex_unlock(&self->lock);
    PyObject *found = PyDict_New();
    for (int32_t number = 0; number < num_lanes; number++) {
        if (found != NULL && lanes[number].count > 0) {
            PyObject *key = PyLong_FromLong(number), *offsets = lane_bytes(&lanes[number]);
            if (key == NULL || offsets == NULL || PyDict_SetItem(found, key, offsets) < 0) {
                Py_CLEAR(found);
            }
            Py_XDECREF(key);
            Py_XDECREF(offsets);
        }
        free(lanes[number].offsets);
    }
    free(lanes);
    return found;
}

/* failure() -> None, or (partition, code, text): the first record that was not taken. */
static PyObject *
producer_failure(producer *self, PyObject *none)
{
    (void)none;
    pthread_mutex_lock(&self->lock);
    int code = self->failure, partition = self->failed_partition;
    pthread_mutex_unlock(&self->lock);
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(iis)", partition, code, rdkafka.err2str(code));
}

/* errors() -> [(code, text, is fatal), ...]: what the client reported by itself since the last call. */
static PyObject *
producer_errors(producer *self, PyObject *none)
{
    (void)none;
    pthread_mutex_lock(&self->lock);
    error_event *event = self->first_event;
    self->first_event = NULL;
    self->next_event = &self->first_event;
    pthread_mutex_unlock(&self->lock);
    PyObject *list = PyList_New(0);
    for (; event != NULL; event = freed_event(event)) {
        PyObject *text = text_of(event->text);
        PyObject *entry =
            text ? Py_BuildValue("(iNO)", event->code, text, event->is_fatal ? Py_True : Py_False) : NULL;
        if (list != NULL && (entry == NULL || PyList_Append(list, entry) < 0)) {
            Py_CLEAR(list); /* the other ones are freed as well */
        }
        Py_XDECREF(entry);
    }
    return list;
}

static PyObject *
producer_log_lines(producer *self, PyObject *none)
{
    (void)none;
    return client_log_lines(&self->client);
}

/* ---- serving; times are in ms ---- */

static int
milliseconds(producer *self, PyObject *arguments)
{
    int time = -1;
    if (!PyArg_ParseTuple(arguments, "i", &time) || check_process(self) < 0) {
        return -1;
    }
    if (time < 0) {
        PyErr_SetString(PyExc_ValueError, "a time below zero");
    }
    return time;
}

static PyObject *
producer_poll(producer *self, PyObject *arguments)
{
    int time = milliseconds(self, arguments), served;
    if (time < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    served = rdkafka.poll(self->client.handle, time);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(served);
}

static PyObject *
producer_flush(producer *self, PyObject *arguments)
{
    int time = milliseconds(self, arguments), left;
    if (time < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    rdkafka.flush(self->client.handle, time);
    left = rdkafka.outq_len(self->client.handle);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(left);
}

/* purge(flags) -> None, or (code, text) */
static PyObject *
producer_purge(producer *self, PyObject *arguments)
{
    int flags, code;
    if (!PyArg_ParseTuple(arguments, "i", &flags) || check_process(self) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    code = rdkafka.purge(self->client.handle, flags);
    Py_END_ALLOW_THREADS
    return code_result(code, rdkafka.err2str(code));
}

static PyObject *
producer_waiting(producer *self, PyObject *none)
{
    (void)none;
    return check_process(self) < 0 ? NULL : PyLong_FromLong(rdkafka.outq_len(self->client.handle));
}

/* ---- transactions: None, or an error as error_tuple() makes it ---- */

typedef rd_kafka_error_t *transaction_step(rd_kafka_t *, int);

static PyObject *
take_step(producer *self, PyObject *arguments, transaction_step *step)
{
    int time = milliseconds(self, arguments);
    if (time < 0) {
        return NULL;
    }
    rd_kafka_error_t *error;
    Py_BEGIN_ALLOW_THREADS
    error = step(self->client.handle, time);
    Py_END_ALLOW_THREADS
    return error_tuple(error);
}

static PyObject *
producer_init_transactions(producer *self, PyObject *arguments)
{
    return take_step(self, arguments, rdkafka.init_transactions);
}

static PyObject *
producer_commit_transaction(producer *self, PyObject *arguments)
{
    return take_step(self, arguments, rdkafka.commit_transaction);
}

static PyObject *
producer_abort_transaction(producer *self, PyObject *arguments)
{
    return take_step(self, arguments, rdkafka.abort_transaction);
}

static PyObject *
producer_begin_transaction(producer *self, PyObject *none)
{
    (void)none;
    if (check_process(self) < 0) {
        return NULL;
    }
    rd_kafka_error_t *error;
    Py_BEGIN_ALLOW_THREADS
    error = rdkafka.begin_transaction(self->client.handle);
    Py_END_ALLOW_THREADS
    return error_tuple(error);
}

static int
add_place(rd_kafka_topic_partition_list_t *places, PyObject *place)
{
    const char *topic, *metadata;
    int partition;
    long long offset;
    if (!PyArg_ParseTuple(place, "siLs", &topic, &partition, &offset, &metadata)) {
        return -1;
    }
    rd_kafka_topic_partition_t *made = rdkafka.topic_partition_list_add(places, topic, partition);
    made->offset = offset;
    made->metadata = strdup(metadata); /* librdkafka frees it with the list */
    /* As confluent-kafka commits it, the NUL included: its consumers read committed metadata up to a NUL, and would read
       on into foreign memory. */
    made->metadata_size = made->metadata ? strlen(metadata) + 1 : 0;
    return 0;
}

/* A list of (topic, partition, offset, metadata); NULL with an exception. */
static rd_kafka_topic_partition_list_t *
places_of(PyObject *list)
{
    Py_ssize_t count = PyList_Size(list);
    rd_kafka_topic_partition_list_t *places = count < 0 ? NULL : rdkafka.topic_partition_list_new((int)count);
    for (Py_ssize_t number = 0; places != NULL && number < count; number++) {
        if (add_place(places, PyList_GetItem(list, number)) < 0) {
            rdkafka.topic_partition_list_destroy(places);
            places = NULL;
        }
    }
    return places;
}

/* send_offsets_to_transaction(places, a group's metadata as confluent-kafka gives it, time) */
static PyObject *
producer_send_offsets(producer *self, PyObject *arguments)
{
    PyObject *list;
    const char *group;
    Py_ssize_t group_size;
    int time;
    if (!PyArg_ParseTuple(arguments, "O!y#i", &PyList_Type, &list, &group, &group_size, &time) ||
        check_process(self) < 0) {
        return NULL;
    }
    if (time < 0) {
        PyErr_SetString(PyExc_ValueError, "a time below zero");
        return NULL;
    }
    rd_kafka_consumer_group_metadata_t *metadata = NULL;
    rd_kafka_error_t *error = rdkafka.consumer_group_metadata_read(&metadata, group, (size_t)group_size);
    if (error != NULL) {
        return error_tuple(error);
    }
    rd_kafka_topic_partition_list_t *places = places_of(list);
    if (places != NULL) {
        Py_BEGIN_ALLOW_THREADS
        error = rdkafka.send_offsets_to_transaction(self->client.handle, places, metadata, time);
        Py_END_ALLOW_THREADS
        rdkafka.topic_partition_list_destroy(places);
    }
    rdkafka.consumer_group_metadata_destroy(metadata);
    return places == NULL ? NULL : error_tuple(error);
}

/* ---- registration ---- */

#define METHOD(name, function, flags, text) {name, (PyCFunction)(void (*)(void))function, flags, text}

static PyMethodDef producer_methods[] = {
    METHOD("produce", producer_produce, METH_VARARGS, "The rows of a batch, as many as there is room for."),
    METHOD("delivered", producer_delivered, METH_NOARGS, "What was acknowledged since the last call."),
    METHOD("failure", producer_failure, METH_NOARGS, "The first record that was not taken."),
    METHOD("errors", producer_errors, METH_NOARGS, "What the client reported by itself since the last call."),
    METHOD("log_lines", producer_log_lines, METH_NOARGS, "The log lines since the last call."),
    METHOD("poll", producer_poll, METH_VARARGS, "Serves the client for so many ms."),
    METHOD("flush", producer_flush, METH_VARARGS, "The same until nothing waits; how many records still do."),
    METHOD("purge", producer_purge, METH_VARARGS, "Drops what waits."),
    METHOD("waiting", producer_waiting, METH_NOARGS, "How many records are not acknowledged yet."),
    METHOD("init_transactions", producer_init_transactions, METH_VARARGS, "As librdkafka's."),
    METHOD("begin_transaction", producer_begin_transaction, METH_NOARGS, "As librdkafka's."),
    METHOD("send_offsets_to_transaction", producer_send_offsets, METH_VARARGS, "As librdkafka's."),
    METHOD("commit_transaction", producer_commit_transaction, METH_VARARGS, "As librdkafka's."),
    METHOD("abort_transaction", producer_abort_transaction, METH_VARARGS, "As librdkafka's."),
    {NULL, NULL, 0, NULL},
};

static PyType_Slot producer_slots[] = {
    {Py_tp_new, producer_new},
    {Py_tp_dealloc, producer_dealloc},
    {Py_tp_methods, producer_methods},
    {Py_tp_doc, "Producer(settings, topic): a producer to one topic. Raises ValueError for settings."},
    {0, NULL},
};

static PyType_Spec producer_spec = {
    .name = "blockgz.kafka._kernel.Producer",
    .basicsize = sizeof(producer),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = producer_slots,
};

int
add_producer(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&producer_spec);
    if (type == NULL) {
        return -1;
    }
    int result = PyModule_AddObjectRef(module, "Producer", type);
    Py_DECREF(type);
    return result;
}

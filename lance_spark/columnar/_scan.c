/* The compiled half of scan.py: follow a chain of record headers.
 *
 *   0      1               5                5 + length
 *   +------+---------------+----------------+
 *   | type | length, u32le | value          | next record ...
 *   +------+---------------+----------------+
 *
 * It only says where records start and where it stopped; why it stopped is worked out
 * in scan.py, for the kernel and for its pure-Python twin alike. No numpy headers: the
 * bytes come in and the positions go out through the buffer protocol.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#define HEADER_BYTES 5

/* Both buffers were measured before the GIL was released. Their bytes may change under
 * us, their sizes may not, so each header is read once and checked before it is used. */
static Py_ssize_t
follow(const uint8_t *data, Py_ssize_t size, Py_ssize_t *position, int64_t *starts,
       Py_ssize_t count, Py_ssize_t capacity, uint32_t length_max)
{
    Py_ssize_t at = *position;
    while (count < capacity && size - at >= HEADER_BYTES) {
        const uint8_t *header = data + at;
        uint32_t length = (uint32_t)header[1] | (uint32_t)header[2] << 8 |
                          (uint32_t)header[3] << 16 | (uint32_t)header[4] << 24;
        if (header[0] == 0 || length > length_max ||
            (Py_ssize_t)length > size - at - HEADER_BYTES)
            break;
        starts[count++] = at;
        at += HEADER_BYTES + (Py_ssize_t)length;
    }
    *position = at;
    return count;
}

PyDoc_STRVAR(follow_doc,
"follow(data, position, starts, count, length_max) -> (position, count)\n--\n\n"
"Append the starts of the whole records from `position` on to the int64 buffer\n"
"`starts`, of which `count` entries are used, until it is full, the data ends or a\n"
"header is not that of a whole record.");

static PyObject *
follow_py(PyObject *module, PyObject *args)
{
    Py_buffer data, starts;
    Py_ssize_t position, count, capacity;
    unsigned int length_max;
    PyObject *result = NULL;
    (void)module;

    if (!PyArg_ParseTuple(args, "y*nw*nI:follow", &data, &position, &starts, &count,
                          &length_max))
        return NULL;
    capacity = starts.len / (Py_ssize_t)sizeof(int64_t);
    if (position < 0 || position > data.len || count < 0 || count > capacity ||
        (uintptr_t)starts.buf % sizeof(int64_t) != 0 || length_max > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "follow: argument out of range");
    } else {
        Py_BEGIN_ALLOW_THREADS
        count = follow(data.buf, data.len, &position, starts.buf, count, capacity,
                       length_max);
        Py_END_ALLOW_THREADS
        result = Py_BuildValue("nn", position, count);
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&starts);
    return result;
}

static PyMethodDef methods[] = {
    {"follow", follow_py, METH_VARARGS, follow_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_scan",
    .m_doc = "Follow a chain of record headers.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__scan(void)
{
    return PyModuleDef_Init(&definition);
}

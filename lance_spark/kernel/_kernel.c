/* The compiled half of the kernel: walks over records, and `weave`.
 *
 * A walk says where records start and where it stopped; why it stopped is worked out by
 * its caller, for the compiled walk and for its Python twin alike. `weave` lays spans of
 * several buffers one behind the other. No NumPy headers: bytes and positions come in
 * and go out through the buffer protocol.
 *
 * Buffers are measured while the GIL is held. Other threads may change their bytes while
 * it is released, but not their sizes. So every length and position is read once and
 * checked before it is used: no input, however wrong, reads or writes outside of them.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* Below this the work takes less time than giving up the GIL and getting it back. */
#define UNLOCKED_BYTES_MIN (128 * 1024)

static int
is_aligned(const Py_buffer *buffer)
{
    return (uintptr_t)buffer->buf % sizeof(int64_t) == 0 &&
           buffer->len % (Py_ssize_t)sizeof(int64_t) == 0;
}

/* TLV records of LWP §8.
 *
 *   0      1               5                5 + length
 *   +------+---------------+----------------+
 *   | type | length, u32le | value          | next record ...
 *   +------+---------------+----------------+
 */
#define TLV_HEADER_BYTES 5

static Py_ssize_t
follow_tlv(const uint8_t *data, Py_ssize_t size, Py_ssize_t *position, int64_t *starts,
           Py_ssize_t count, Py_ssize_t capacity, uint32_t length_max)
{
    Py_ssize_t at = *position;
    while (count < capacity && size - at >= TLV_HEADER_BYTES) {
        const uint8_t *header = data + at;
        uint32_t length = (uint32_t)header[1] | (uint32_t)header[2] << 8 |
                          (uint32_t)header[3] << 16 | (uint32_t)header[4] << 24;
        if (header[0] == 0 || length > length_max ||
            (Py_ssize_t)length > size - at - TLV_HEADER_BYTES)
            break;
        starts[count++] = at;
        at += TLV_HEADER_BYTES + (Py_ssize_t)length;
    }
    *position = at;
    return count;
}

PyDoc_STRVAR(follow_tlv_doc,
"follow_tlv(data, position, starts, count, length_max) -> (position, count)\n--\n\n"
"Append the starts of the whole records from `position` on to the int64 buffer\n"
"`starts`, of which `count` entries are used, until it is full, the data ends or a\n"
"header is not that of a whole record.");

static PyObject *
follow_tlv_py(PyObject *module, PyObject *args)
{
    Py_buffer data, starts;
    Py_ssize_t position, count, capacity;
    unsigned int length_max;
    PyObject *result = NULL;
    (void)module;

    if (!PyArg_ParseTuple(args, "y*nw*nI:follow_tlv", &data, &position, &starts, &count,
                          &length_max))
        return NULL;
    capacity = starts.len / (Py_ssize_t)sizeof(int64_t);
    if (position < 0 || position > data.len || count < 0 || count > capacity ||
        !is_aligned(&starts) || length_max > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "follow_tlv: argument out of range");
    } else {
        PyThreadState *unlocked = NULL;
        if (data.len >= UNLOCKED_BYTES_MIN)
            unlocked = PyEval_SaveThread();
        count = follow_tlv(data.buf, data.len, &position, starts.buf, count, capacity,
                           length_max);
        if (unlocked != NULL)
            PyEval_RestoreThread(unlocked);
        result = Py_BuildValue("nn", position, count);
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&starts);
    return result;
}

/* Values with their lengths, as RustLog sends them.
 *
 *   0                4                4 + length
 *   +----------------+----------------+
 *   | length, u32be  | value          | next length ...
 *   +----------------+----------------+
 */
#define BE32_BYTES 4

static Py_ssize_t
follow_be32(const uint8_t *data, Py_ssize_t size, int64_t *starts, Py_ssize_t capacity,
            Py_ssize_t *end)
{
    Py_ssize_t at = 0, count = 0;
    while (count < capacity && size - at >= BE32_BYTES) {
        const uint8_t *header = data + at;
        uint32_t length = (uint32_t)header[0] << 24 | (uint32_t)header[1] << 16 |
                          (uint32_t)header[2] << 8 | (uint32_t)header[3];
        /* As u64: where Py_ssize_t has 32 bits, a length may not fit into it. */
        if ((uint64_t)(size - at - BE32_BYTES) < length)
            break;
        starts[count++] = at;
        at += BE32_BYTES + (Py_ssize_t)length;
    }
    *end = at;
    return count;
}

PyDoc_STRVAR(follow_be32_doc,
"follow_be32(data, starts) -> (end, count)\n--\n\n"
"Write the starts of the whole values at the start of the data to the int64 buffer\n"
"`starts`, until it is full, the data ends or a value is not there as a whole.");

static PyObject *
follow_be32_py(PyObject *module, PyObject *args)
{
    Py_buffer data, starts;
    Py_ssize_t end, count;
    PyObject *result = NULL;
    (void)module;

    if (!PyArg_ParseTuple(args, "y*w*:follow_be32", &data, &starts))
        return NULL;
    if (!is_aligned(&starts)) {
        PyErr_SetString(PyExc_ValueError, "follow_be32: starts are not int64");
    } else {
        Py_BEGIN_ALLOW_THREADS
        count = follow_be32(data.buf, data.len, starts.buf,
                            starts.len / (Py_ssize_t)sizeof(int64_t), &end);
        Py_END_ALLOW_THREADS
        result = Py_BuildValue("nn", end, count);
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&starts);
    return result;
}

PyDoc_STRVAR(measure_doc,
"measure(starts, ends, offsets) -> total\n--\n\n"
"Write the offsets of spans that are laid one behind the other to the int32 buffer\n"
"`offsets`: 0, then the end of each. They mean nothing if the total is 2 GiB or more.\n"
"Raises ValueError for a span that ends before it starts.");

static PyObject *
measure_py(PyObject *module, PyObject *args)
{
    Py_buffer starts, ends, offsets;
    PyObject *result = NULL;
    uint64_t total = 0;
    (void)module;

    if (!PyArg_ParseTuple(args, "y*y*w*:measure", &starts, &ends, &offsets))
        return NULL;
    Py_ssize_t rows = starts.len / (Py_ssize_t)sizeof(int64_t), row = 0;
    if (is_aligned(&starts) && is_aligned(&ends) && ends.len == starts.len &&
        offsets.len == (rows + 1) * (Py_ssize_t)sizeof(int32_t) &&
        (uintptr_t)offsets.buf % sizeof(int32_t) == 0) {
        const int64_t *from = starts.buf, *to = ends.buf;
        int32_t *out = offsets.buf;
        Py_BEGIN_ALLOW_THREADS
        *out = 0;
        for (; row < rows && to[row] >= from[row]; row++) {
            total += (uint64_t)to[row] - (uint64_t)from[row];
            out[row + 1] = (int32_t)(uint32_t)total;
        }
        Py_END_ALLOW_THREADS
        if (row == rows)
            result = PyLong_FromUnsignedLongLong(total);
    }
    if (result == NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "measure: argument out of range");
    PyBuffer_Release(&starts);
    PyBuffer_Release(&ends);
    PyBuffer_Release(&offsets);
    return result;
}

/* CRC-32C, reflected: eight tables, so that a step takes eight bytes. */
#define CRC32C_POLYNOMIAL 0x82F63B78u

static uint32_t crc32c_table[8][256];

static void
fill_crc32c_table(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? CRC32C_POLYNOMIAL : 0);
        crc32c_table[0][byte] = crc;
    }
    for (int step = 1; step < 8; step++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = crc32c_table[step - 1][byte];
            crc32c_table[step][byte] = crc >> 8 ^ crc32c_table[0][crc & 0xFF];
        }
}

static uint32_t
compute_crc32c(const uint8_t *data, int64_t size)
{
    uint32_t crc = 0xFFFFFFFFu;
    for (; size >= 8; data += 8, size -= 8) {
        uint32_t low = crc ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 |
                              (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24);
        crc = crc32c_table[7][low & 0xFF] ^ crc32c_table[6][low >> 8 & 0xFF] ^
              crc32c_table[5][low >> 16 & 0xFF] ^ crc32c_table[4][low >> 24] ^
              crc32c_table[3][data[4]] ^ crc32c_table[2][data[5]] ^
              crc32c_table[1][data[6]] ^ crc32c_table[0][data[7]];
    }
    for (; size > 0; data++, size--)
        crc = crc >> 8 ^ crc32c_table[0][(crc ^ *data) & 0xFF];
    return ~crc;
}

PyDoc_STRVAR(sum_spans_doc,
"sum_spans(data, starts, ends, sums)\n--\n\n"
"Write the CRC-32C of each span to the uint32 buffer `sums`. Raises ValueError for a\n"
"span that is not in the data.");

static PyObject *
sum_spans_py(PyObject *module, PyObject *args)
{
    Py_buffer data, starts, ends, sums;
    int is_done = 0;
    (void)module;

    if (!PyArg_ParseTuple(args, "y*y*y*w*:sum_spans", &data, &starts, &ends, &sums))
        return NULL;
    Py_ssize_t rows = starts.len / (Py_ssize_t)sizeof(int64_t), row = 0;
    if (is_aligned(&starts) && is_aligned(&ends) && ends.len == starts.len &&
        sums.len == rows * (Py_ssize_t)sizeof(uint32_t) &&
        (uintptr_t)sums.buf % sizeof(uint32_t) == 0) {
        const int64_t *from = starts.buf, *to = ends.buf;
        uint32_t *out = sums.buf;
        Py_BEGIN_ALLOW_THREADS
        for (; row < rows; row++) {
            int64_t start = from[row], end = to[row];
            if (start < 0 || end < start || end > (int64_t)data.len)
                break;
            out[row] = compute_crc32c((const uint8_t *)data.buf + start, end - start);
        }
        Py_END_ALLOW_THREADS
        is_done = row == rows;
    }
    if (!is_done)
        PyErr_SetString(PyExc_ValueError, "sum_spans: argument out of range");
    PyBuffer_Release(&data);
    PyBuffer_Release(&starts);
    PyBuffer_Release(&ends);
    PyBuffer_Release(&sums);
    if (!is_done)
        return NULL;
    Py_RETURN_NONE;
}

/* Prefix, key and value are three; nothing needs more than a few. */
#define PARTS_MAX 8

typedef struct {
    Py_buffer data, starts, ends;
} Part;

/* Copy a span whose bounds were checked. Short ones are copied in whole steps, which is
 * several times faster than a call of memcpy. What a step writes behind the span is still
 * inside of the output, and the next span overwrites it. */
#define STEP_BYTES 16
#define STEPPED_BYTES_MAX 128

static inline void
copy_span(uint8_t *to, Py_ssize_t room, const uint8_t *from, Py_ssize_t there,
          Py_ssize_t length)
{
    if (length <= STEPPED_BYTES_MAX && length + STEP_BYTES <= room &&
        length + STEP_BYTES <= there) {
        for (Py_ssize_t at = 0; at < length; at += STEP_BYTES)
            memcpy(to + at, from + at, STEP_BYTES);
    } else {
        memcpy(to, from, (size_t)length);
    }
}

/* Returns how many bytes were written, or -1 at a span that is outside of its data or
 * does not fit into the output. */
static Py_ssize_t
weave(uint8_t *out, Py_ssize_t size, const Part *parts, Py_ssize_t count)
{
    Py_ssize_t rows = parts[0].starts.len / (Py_ssize_t)sizeof(int64_t);
    Py_ssize_t at = 0;
    for (Py_ssize_t row = 0; row < rows; row++) {
        for (Py_ssize_t i = 0; i < count; i++) {
            int64_t start = ((const volatile int64_t *)parts[i].starts.buf)[row];
            int64_t end = ((const volatile int64_t *)parts[i].ends.buf)[row];
            if (start < 0 || end < start || end > parts[i].data.len ||
                end - start > size - at)
                return -1;
            copy_span(out + at, size - at, (const uint8_t *)parts[i].data.buf + start,
                      parts[i].data.len - (Py_ssize_t)start, (Py_ssize_t)(end - start));
            at += (Py_ssize_t)(end - start);
        }
    }
    return at;
}

static int
overlaps(const Py_buffer *one, const Py_buffer *other)
{
    uintptr_t a = (uintptr_t)one->buf, b = (uintptr_t)other->buf;
    return one->len > 0 && other->len > 0 && a < b + (uintptr_t)other->len &&
           b < a + (uintptr_t)one->len;
}

static const char *
find_fault(const Py_buffer *out, const Part *parts, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        const Part *part = &parts[i];
        if (!is_aligned(&part->starts) || !is_aligned(&part->ends))
            return "weave: positions are not an array of int64";
        if (part->starts.len != parts[0].starts.len ||
            part->ends.len != parts[0].starts.len)
            return "weave: parts differ in their number of spans";
        if (overlaps(out, &part->data) || overlaps(out, &part->starts) ||
            overlaps(out, &part->ends))
            return "weave: the output overlaps an input";
    }
    return NULL;
}

static int
read_part(PyObject *item, Part *part)
{
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "weave: a part is (data, starts, ends)");
        return 0;
    }
    return PyArg_ParseTuple(item, "y*y*y*:weave", &part->data, &part->starts,
                            &part->ends);
}

PyDoc_STRVAR(weave_doc,
"weave(out, parts)\n--\n\n"
"Fill the writable buffer `out` with the first span of each part, then the second of\n"
"each, and so on. A part is (data, starts, ends), with two int64 buffers of the same\n"
"length; spans may come in any order and overlap each other. Raises ValueError for a\n"
"span outside of its data, and if the spans have not exactly as many bytes as `out`.");

static PyObject *
weave_py(PyObject *module, PyObject *args)
{
    Py_buffer out;
    PyObject *given, *result = NULL;
    Part parts[PARTS_MAX];
    Py_ssize_t count, read = 0, written;
    const char *fault;
    (void)module;

    if (!PyArg_ParseTuple(args, "w*O!:weave", &out, &PyTuple_Type, &given))
        return NULL;
    count = PyTuple_GET_SIZE(given);
    if (count < 1 || count > PARTS_MAX) {
        PyErr_SetString(PyExc_ValueError, "weave: 1 to 8 parts are needed");
        goto done;
    }
    for (; read < count; read++)
        if (!read_part(PyTuple_GET_ITEM(given, read), &parts[read]))
            goto done;
    fault = find_fault(&out, parts, count);
    if (fault != NULL) {
        PyErr_SetString(PyExc_ValueError, fault);
        goto done;
    }
    if (out.len < UNLOCKED_BYTES_MIN) {
        written = weave(out.buf, out.len, parts, count);
    } else {
        Py_BEGIN_ALLOW_THREADS
        written = weave(out.buf, out.len, parts, count);
        Py_END_ALLOW_THREADS
    }
    if (written < 0)
        PyErr_SetString(PyExc_ValueError, "weave: a span is out of range");
    else if (written != out.len)
        PyErr_SetString(PyExc_ValueError, "weave: the spans do not fill the output");
    else
        result = Py_NewRef(Py_None);
done:
    while (read-- > 0) {
        PyBuffer_Release(&parts[read].data);
        PyBuffer_Release(&parts[read].starts);
        PyBuffer_Release(&parts[read].ends);
    }
    PyBuffer_Release(&out);
    return result;
}

/* Bundles of TANK, which hold messages; varints are LEB128 of up to 32 bits.
 *
 *   bundle    length varint | flags | [count varint] | [first u64 [| last varint]] | set
 *   message   flags | [gap varint] | [time u64] | [length u8, key] | length varint, value
 *
 * The length of a bundle is left out where the data is one bundle. Its flags are the
 * codec (2 bits), the count (4 bits, or 0 and a varint) and `sparse`. A sparse bundle
 * says which sequence numbers its first and last message have (last - first - 1), and
 * each one between them how many numbers it leaves out, unless that is none.
 */
#define TANK_CODEC 0x03
#define TANK_COUNT_SHIFT 2
#define TANK_COUNT_MASK 0x0F
#define TANK_SPARSE 0x40
#define TANK_RESERVED 0x80
#define TANK_KEY 1
#define TANK_SAME_TIME 2
#define TANK_NO_GAP 4
#define TANK_MESSAGE_FLAGS 7
#define TANK_MESSAGE_BYTES_MIN 2
#define TANK_COLUMNS 5
/* Above this a number is nonsense, and below it sums do not overflow. */
#define TANK_SEQ_MAX (INT64_MAX / 2)

typedef struct {
    Py_ssize_t start, end;
    int64_t count, first, last;
    int sparse;
} Bundle;

/* Returns -1 where the data ends inside of the varint, or it has more than 32 bits. */
static int64_t
read_varint(const uint8_t *data, Py_ssize_t end, Py_ssize_t *at)
{
    uint64_t value = 0;
    for (int shift = 0; shift < 35 && *at < end; shift += 7) {
        uint8_t byte = data[(*at)++];
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80)
            return value <= UINT32_MAX ? (int64_t)value : -1;
    }
    return -1;
}

static uint64_t
read_u64(const uint8_t *data)
{
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--)
        value = value << 8 | data[i];
    return value;
}

/* Returns 0 where no whole bundle starts that can be walked: also at a codec. */
static int
read_bundle(const uint8_t *data, Py_ssize_t size, Py_ssize_t at, int64_t seq, int single,
            Bundle *bundle)
{
    int64_t length = single ? size - at : read_varint(data, size, &at), gap = -1;
    if (length < 0 || length > size - at || seq > TANK_SEQ_MAX)
        return 0;
    *bundle = (Bundle){.end = at + (Py_ssize_t)length, .first = seq};
    if (length > 0) {
        uint8_t flags = data[at++];
        if (flags & (TANK_CODEC | TANK_RESERVED))
            return 0;
        bundle->sparse = flags & TANK_SPARSE;
        bundle->count = flags >> TANK_COUNT_SHIFT & TANK_COUNT_MASK;
        if (bundle->count == 0)
            bundle->count = read_varint(data, bundle->end, &at);
        if (bundle->count < 0)
            return 0;
    }
    if (bundle->sparse) {
        if (bundle->end - at < 8)
            return 0;
        uint64_t first = read_u64(data + at);
        at += 8;
        if (first < (uint64_t)seq || first > TANK_SEQ_MAX)
            return 0;
        bundle->first = (int64_t)first;
        if (bundle->count > 1 && (gap = read_varint(data, bundle->end, &at)) < 0)
            return 0;
    }
    bundle->start = at;
    bundle->last = bundle->first + (gap < 0 ? bundle->count - 1 : gap + 1);
    return bundle->count <= (bundle->end - at) / TANK_MESSAGE_BYTES_MIN;
}

/* Fill rows of the table; returns 0 if the messages are not as many as there should be,
 * of just the bundle's bytes and numbers. */
static int
follow_messages(const uint8_t *data, const Bundle *bundle, int64_t *row,
                Py_ssize_t capacity)
{
    Py_ssize_t at = bundle->start, end = bundle->end;
    int64_t seq = bundle->first - 1;
    uint64_t time = 0;
    for (int64_t i = 0; i < bundle->count; i++, row++) {
        if (at >= end)
            return 0;
        uint8_t flags = data[at++];
        int64_t key = -1, length, gap = 0;
        if (++seq > bundle->last || flags & ~TANK_MESSAGE_FLAGS)
            return 0;
        if (bundle->sparse && i > 0 && !(flags & TANK_NO_GAP)) {
            if (i == bundle->count - 1)
                seq = bundle->last;
            else if ((gap = read_varint(data, end, &at)) < 0)
                return 0;
            seq += gap;
        }
        if (!(flags & TANK_SAME_TIME)) {
            if (end - at < 8)
                return 0;
            time = read_u64(data + at);
            at += 8;
        }
        if (flags & TANK_KEY) {
            if (at >= end)
                return 0;
            length = data[at++];
            key = at;
            if (length > end - at)
                return 0;
            at += (Py_ssize_t)length;
        }
        length = read_varint(data, end, &at);
        if (length < 0 || length > end - at)
            return 0;
        row[0] = at;
        at += (Py_ssize_t)length;
        row[capacity] = at;
        row[2 * capacity] = key;
        row[3 * capacity] = (int64_t)time;
        row[4 * capacity] = seq;
    }
    return at == end && seq == bundle->last;
}

PyDoc_STRVAR(follow_tank_doc,
"follow_tank(data, seq, single, table) -> (position, rows, seq)\n--\n\n"
"Fill the int64 buffer `table`, of five columns one behind the other, with the start\n"
"and end of each message's value, the start of its key or -1, its time and its number,\n"
"until a bundle is not whole, not plain or does not fit. An empty table only counts.");

static PyObject *
follow_tank_py(PyObject *module, PyObject *args)
{
    Py_buffer data, table;
    Py_ssize_t position = 0, rows = 0, capacity;
    long long given;
    int single;
    PyObject *result = NULL;
    (void)module;

    if (!PyArg_ParseTuple(args, "y*Lpw*:follow_tank", &data, &given, &single, &table))
        return NULL;
    capacity = table.len / (TANK_COLUMNS * (Py_ssize_t)sizeof(int64_t));
    if (given < 0 || !is_aligned(&table)) {
        PyErr_SetString(PyExc_ValueError, "follow_tank: argument out of range");
    } else {
        int64_t seq = given;
        Bundle bundle;
        Py_BEGIN_ALLOW_THREADS
        while (position < data.len &&
               read_bundle(data.buf, data.len, position, seq, single, &bundle)) {
            if (capacity > 0 && bundle.count > capacity - rows)
                break;
            if ((capacity > 0 || bundle.count == 0) &&
                !follow_messages(data.buf, &bundle, (int64_t *)table.buf + rows, capacity))
                break;
            position = bundle.end;
            rows += (Py_ssize_t)bundle.count;
            seq = bundle.last + 1;
        }
        Py_END_ALLOW_THREADS
        result = Py_BuildValue("nnL", position, rows, (long long)seq);
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&table);
    return result;
}

/* Returns how many bytes LEB128 takes for a value. */
static int
size_varint(uint64_t value)
{
    int size = 1;
    for (; value > 0x7F; value >>= 7)
        size++;
    return size;
}

PyDoc_STRVAR(put_varints_doc,
"put_varints(out, at, values)\n--\n\n"
"Write each integer of the uint64 buffer `values` as LEB128 to the writable buffer `out`,\n"
"from the position of the same index in the int64 buffer `at` on. Raises ValueError for\n"
"one that does not fit into `out`, whose bytes mean nothing then.");

static PyObject *
put_varints_py(PyObject *module, PyObject *args)
{
    Py_buffer out, at, values;
    int is_done = 0;
    (void)module;

    if (!PyArg_ParseTuple(args, "w*y*y*:put_varints", &out, &at, &values))
        return NULL;
    Py_ssize_t rows = values.len / (Py_ssize_t)sizeof(uint64_t), row = 0;
    if (is_aligned(&at) && is_aligned(&values) && at.len == values.len &&
        !overlaps(&out, &at) && !overlaps(&out, &values)) {
        for (; row < rows; row++) {
            int64_t start = ((const int64_t *)at.buf)[row];
            uint64_t value = ((const uint64_t *)values.buf)[row];
            if (start < 0 || start > out.len || size_varint(value) > out.len - start)
                break;
            uint8_t *to = (uint8_t *)out.buf + start;
            for (; value > 0x7F; value >>= 7)
                *to++ = (uint8_t)(value | 0x80);
            *to = (uint8_t)value;
        }
        is_done = row == rows;
    }
    PyBuffer_Release(&out);
    PyBuffer_Release(&at);
    PyBuffer_Release(&values);
    if (is_done)
        Py_RETURN_NONE;
    PyErr_SetString(PyExc_ValueError, "put_varints: argument out of range");
    return NULL;
}

/* Batches of Fluvio, version 2 of its records; integers are big-endian, varints zigzag.
 *
 *   batch    0 base offset i64 | 8 length i32 | 12 epoch i32 | 16 magic i8 | 17 crc u32 |
 *            21 attributes i16 | 23 last offset delta i32 | 27 first time i64 | 35 ... |
 *            57 [schema u32] | count i32 | records
 *   record   length | attributes i8 | time delta | offset delta | 0 or 1 [length, key] |
 *            length, value | number of headers | ... up to the length
 *
 * The length of a batch counts what is behind it. A compressed batch is not walked.
 */
#define FLUVIO_LENGTH_AT 8
#define FLUVIO_PREAMBLE_BYTES 12
#define FLUVIO_MAGIC_AT 16
#define FLUVIO_MAGIC 2
#define FLUVIO_ATTRIBUTES_AT 21
#define FLUVIO_CODEC 0x07
#define FLUVIO_SCHEMA 0x10
#define FLUVIO_TIME_AT 27
#define FLUVIO_HEAD_BYTES 57
#define FLUVIO_RECORD_BYTES_MIN 7
#define FLUVIO_COLUMNS 5
#define FLUVIO_BATCH_COLUMNS 2

typedef struct {
    Py_ssize_t start, end;
    int64_t count, time;
} FluvioBatch;

static uint64_t
read_be(const uint8_t *data, int size)
{
    uint64_t value = 0;
    for (int i = 0; i < size; i++)
        value = value << 8 | data[i];
    return value;
}

/* Returns 0 where the data ends inside of the varint, or it has more than 64 bits. */
static int
read_zigzag(const uint8_t *data, Py_ssize_t end, Py_ssize_t *at, int64_t *value)
{
    uint64_t found = 0;
    for (int shift = 0; shift < 70 && *at < end; shift += 7) {
        uint8_t byte = data[(*at)++];
        if (shift == 63 && byte > 1)
            return 0;
        found |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *value = (int64_t)(found >> 1) ^ -(int64_t)(found & 1);
            return 1;
        }
    }
    return 0;
}

/* Returns 0 where no whole batch starts that can be walked: also at a codec. */
static int
read_fluvio_batch(const uint8_t *data, Py_ssize_t size, Py_ssize_t at, FluvioBatch *batch)
{
    const uint8_t *head = data + at;
    if (size - at < FLUVIO_HEAD_BYTES)
        return 0;
    int32_t length = (int32_t)read_be(head + FLUVIO_LENGTH_AT, 4);
    uint8_t attributes = head[FLUVIO_ATTRIBUTES_AT + 1];
    Py_ssize_t skipped = FLUVIO_HEAD_BYTES + (attributes & FLUVIO_SCHEMA ? 4 : 0);
    if (length < skipped + 4 - FLUVIO_PREAMBLE_BYTES ||
        length > size - at - FLUVIO_PREAMBLE_BYTES ||
        head[FLUVIO_MAGIC_AT] != FLUVIO_MAGIC || attributes & FLUVIO_CODEC)
        return 0;
    int32_t count = (int32_t)read_be(head + skipped, 4);
    *batch = (FluvioBatch){
        .start = at + skipped + 4,
        .end = at + FLUVIO_PREAMBLE_BYTES + (Py_ssize_t)length,
        .count = count < 0 ? 0 : count,
        .time = (int64_t)read_be(head + FLUVIO_TIME_AT, 8),
    };
    return batch->count <= (batch->end - batch->start) / FLUVIO_RECORD_BYTES_MIN;
}

/* Fill rows of the table; returns 0 if the records are not as many as there should be,
 * of just the batch's bytes. */
static int
follow_fluvio_records(const uint8_t *data, const FluvioBatch *batch, int64_t *row,
                      Py_ssize_t capacity)
{
    Py_ssize_t at = batch->start;
    for (int64_t i = 0; i < batch->count; i++, row++) {
        int64_t length, delta, ignored, key = -1, key_end = -1;
        if (!read_zigzag(data, batch->end, &at, &length) || length < 1 ||
            length > batch->end - at)
            return 0;
        Py_ssize_t end = at + (Py_ssize_t)length;
        at++;
        if (!read_zigzag(data, end, &at, &delta) ||
            !read_zigzag(data, end, &at, &ignored) || at >= end || data[at] > 1)
            return 0;
        if (data[at++] == 1) {
            if (!read_zigzag(data, end, &at, &length) || length < 0 || length > end - at)
                return 0;
            key = at;
            at += (Py_ssize_t)length;
            key_end = at;
        }
        if (!read_zigzag(data, end, &at, &length) || length < 0 || length > end - at)
            return 0;
        row[0] = at;
        at += (Py_ssize_t)length;
        row[capacity] = at;
        row[2 * capacity] = key;
        row[3 * capacity] = key_end;
        row[4 * capacity] = batch->time <= 0                   ? -1
                            : delta > INT64_MAX - batch->time ? INT64_MAX
                                                              : batch->time + delta;
        /* What the headers are made of is not looked at. */
        if (!read_zigzag(data, end, &at, &ignored) || (ignored == 0 && at != end))
            return 0;
        at = end;
    }
    return at == batch->end;
}

PyDoc_STRVAR(follow_fluvio_doc,
"follow_fluvio(data, table, batches) -> (position, rows, count)\n--\n\n"
"Fill the int64 buffer `table`, of five columns one behind the other, with the start\n"
"and end of each record's value and key (-1 if it has none) and its time (-1 if its\n"
"batch has none), and `batches`, of two columns, with each batch's start and first row,\n"
"until a batch is not whole, not plain or does not fit. Empty `batches` only count.");

static PyObject *
follow_fluvio_py(PyObject *module, PyObject *args)
{
    Py_buffer data, table, batches;
    Py_ssize_t position = 0, rows = 0, count = 0;
    PyObject *result = NULL;
    (void)module;

    if (!PyArg_ParseTuple(args, "y*w*w*:follow_fluvio", &data, &table, &batches))
        return NULL;
    Py_ssize_t capacity = table.len / (FLUVIO_COLUMNS * (Py_ssize_t)sizeof(int64_t));
    Py_ssize_t room = batches.len / (FLUVIO_BATCH_COLUMNS * (Py_ssize_t)sizeof(int64_t));
    if (!is_aligned(&table) || !is_aligned(&batches) || overlaps(&table, &batches) ||
        overlaps(&data, &table) || overlaps(&data, &batches)) {
        PyErr_SetString(PyExc_ValueError, "follow_fluvio: argument out of range");
    } else {
        int64_t *row = table.buf, *place = batches.buf;
        FluvioBatch batch;
        Py_BEGIN_ALLOW_THREADS
        while (position < data.len &&
               read_fluvio_batch(data.buf, data.len, position, &batch)) {
            if (room > 0) {
                if (count == room || batch.count > capacity - rows ||
                    !follow_fluvio_records(data.buf, &batch, row + rows, capacity))
                    break;
                place[count] = position;
                place[room + count] = rows;
            }
            position = batch.end;
            rows += (Py_ssize_t)batch.count;
            count++;
        }
        Py_END_ALLOW_THREADS
        result = Py_BuildValue("nnn", position, rows, count);
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&table);
    PyBuffer_Release(&batches);
    return result;
}

/* Values with their lengths, as Kimberlite sends them: the length is LEB128 of up to 64
 * bits (postcard), or eight bytes, the low ones first (bincode).
 *
 *   length | value | length | value ...
 */
#define FIXED_LENGTH_BYTES 8
#define LENGTH_BITS 64

/* Returns 0 where the data ends inside of the length, or it has more than 64 bits. */
static int
read_length(const uint8_t *data, Py_ssize_t size, int fixed, Py_ssize_t *at,
            uint64_t *length)
{
    if (fixed) {
        if (size - *at < FIXED_LENGTH_BYTES)
            return 0;
        *length = read_u64(data + *at);
        *at += FIXED_LENGTH_BYTES;
        return 1;
    }
    *length = 0;
    for (int shift = 0; shift < LENGTH_BITS && *at < size; shift += 7) {
        uint64_t byte = data[(*at)++], bits = byte & 0x7F;
        if (bits << shift >> shift != bits)
            return 0;
        *length |= bits << shift;
        if (byte < 0x80)
            return 1;
    }
    return 0;
}

static Py_ssize_t
follow_lengths(const uint8_t *data, Py_ssize_t size, int fixed, int64_t *table,
               Py_ssize_t capacity, Py_ssize_t *end)
{
    Py_ssize_t at = 0, count = 0;
    uint64_t length;
    *end = 0;
    while (count < capacity && read_length(data, size, fixed, &at, &length) &&
           length <= (uint64_t)(size - at)) {
        table[count] = at;
        at += (Py_ssize_t)length;
        table[capacity + count++] = at;
        *end = at;
    }
    return count;
}

PyDoc_STRVAR(follow_lengths_doc,
"follow_lengths(data, fixed, table) -> (end, count)\n--\n\n"
"Fill the int64 buffer `table`, of two columns one behind the other, with the start and\n"
"the end of each value, until it is full, the data ends or a value is not there as a\n"
"whole. Lengths are eight bytes if `fixed`, else LEB128.");

static PyObject *
follow_lengths_py(PyObject *module, PyObject *args)
{
    Py_buffer data, table;
    Py_ssize_t end, count;
    int fixed;
    PyObject *result = NULL;
    (void)module;

    if (!PyArg_ParseTuple(args, "y*pw*:follow_lengths", &data, &fixed, &table))
        return NULL;
    if (!is_aligned(&table)) {
        PyErr_SetString(PyExc_ValueError, "follow_lengths: the table is not int64");
    } else {
        Py_BEGIN_ALLOW_THREADS
        count = follow_lengths(data.buf, data.len, fixed, table.buf,
                               table.len / (2 * (Py_ssize_t)sizeof(int64_t)), &end);
        Py_END_ALLOW_THREADS
        result = Py_BuildValue("nn", end, count);
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&table);
    return result;
}

static PyMethodDef methods[] = {
    {"follow_be32", follow_be32_py, METH_VARARGS, follow_be32_doc},
    {"follow_tlv", follow_tlv_py, METH_VARARGS, follow_tlv_doc},
    {"put_varints", put_varints_py, METH_VARARGS, put_varints_doc},
    {"measure", measure_py, METH_VARARGS, measure_doc},
    {"sum_spans", sum_spans_py, METH_VARARGS, sum_spans_doc},
    {"weave", weave_py, METH_VARARGS, weave_doc},
    {"follow_tank", follow_tank_py, METH_VARARGS, follow_tank_doc},
    {"follow_lengths", follow_lengths_py, METH_VARARGS, follow_lengths_doc},
    {"follow_fluvio", follow_fluvio_py, METH_VARARGS, follow_fluvio_doc},
    {NULL, NULL, 0, NULL},
};

static int
prepare(PyObject *module)
{
    (void)module;
    fill_crc32c_table();
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_kernel",
    .m_doc = "Walks over records, and spans laid one behind the other.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__kernel(void)
{
    return PyModuleDef_Init(&definition);
}

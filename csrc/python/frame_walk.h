// Reads the Python stack of the calling thread, without the GIL and without creating Python objects.
#pragma once

#include <Python.h>

#include <cstddef>

namespace torchnan {

struct RawFrame {
  PyCodeObject* code;     // borrowed: alive as long as the frame runs
  int instruction;        // offset in bytes, as PyCode_Addr2Line() takes it
  PyObject* first_local;  // borrowed: the first argument, or null
};

// Writes at most `capacity` frames, the innermost first, and returns their number. The last of more frames is always
// the outermost one. A thread unknown to Python has none.
// Only the frames of the calling thread are read, and only that thread can change them, so no lock is needed. The
// layout of frames is internal to CPython; each version needs a few separate lines here.
size_t walk_frames(RawFrame* frames, size_t capacity) noexcept;

// Lets the stack of this thread end at the innermost frame that it has now, which no walk returns, until
// continue_stack().
void end_stack_here() noexcept;
void continue_stack() noexcept;

// Returns the cell of a free variable of the innermost function with this code that the calling thread runs; null if
// it runs none. `index`: of the variable in co_freevars. Borrowed: alive as long as the frame runs.
PyObject* cell_of_free_variable(const PyCodeObject* code, int index) noexcept;

}  // namespace torchnan

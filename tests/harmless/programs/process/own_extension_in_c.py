# how: rank
# slow
import importlib.util
import shutil
import subprocess
import sys
import sysconfig
import traceback

if shutil.which("gcc") is None:
    sys.exit(0)
import nets
import torch

SOURCE = r"""
#define PY_SSIZE_T_CLEAN
#include <Python.h>
static PyObject *twice(PyObject *self, PyObject *args) {  /* calls what it is given, from C */
    PyObject *f, *x, *y, *z;
    if (!PyArg_ParseTuple(args, "OO", &f, &x)) return NULL;
    if (!(y = PyObject_CallOneArg(f, x))) return NULL;
    z = PyObject_CallOneArg(f, y);
    Py_DECREF(y);
    return z;
}
static PyObject *without_lock(PyObject *self, PyObject *args) {  /* from a thread state without a frame of Python */
    PyObject *f, *r; if (!PyArg_ParseTuple(args, "O", &f)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    PyGILState_STATE s = PyGILState_Ensure(); r = PyObject_CallNoArgs(f); PyGILState_Release(s);
    Py_END_ALLOW_THREADS
    return r;
}
static PyObject *at_exit_object;
static void at_exit(void) { fprintf(stderr, "left by C\n"); }
static PyObject *leave(PyObject *self, PyObject *none) { Py_AtExit(at_exit); atexit(at_exit); Py_RETURN_NONE; }
static PyMethodDef methods[] = {{"twice", twice, METH_VARARGS, ""}, {"without_lock", without_lock, METH_VARARGS, ""}, {"leave", leave, METH_NOARGS, ""}, {0}};
static struct PyModuleDef def = {PyModuleDef_HEAD_INIT, "own", 0, -1, methods};
PyMODINIT_FUNC PyInit_own(void) { return PyModule_Create(&def); }
"""
with open("own.c", "w") as file:
    file.write(SOURCE)
include = sysconfig.get_paths()["include"]
built = subprocess.run(
    ["gcc", "-shared", "-fPIC", "-w", f"-I{include}", "own.c", "-o", "own.so"], capture_output=True
)
if built.returncode:
    print("no headers of Python")
    sys.exit(0)
spec = importlib.util.spec_from_file_location("own", "own.so")
own = importlib.util.module_from_spec(spec)
spec.loader.exec_module(own)
import os

os.remove("own.so")
model = nets.Net()
optimizer = torch.optim.SGD(model.parameters(), 0.05)
for _ in range(60):
    optimizer.zero_grad()
    loss = own.twice(model, torch.ones(2, 8)).square().mean()
    own.without_lock(loss.backward)
    own.without_lock(optimizer.step)
own.without_lock(lambda: torch.save(model.state_dict(), "x.pt"))
print(loss.item().hex(), nets.digest(model))
try:
    own.twice(model, torch.ones(2, 3))
except RuntimeError as error:
    print([frame.name for frame in traceback.extract_tb(error.__traceback__)])
own.leave()

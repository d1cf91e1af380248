# Finds what the PyTorch package needs: the interpreter that has PyTorch, which need not be the first
# python3 on PATH, and pybind11. Sets DGC_PYTHON_EXECUTABLE, and python_found or python_missing (why
# not).
function(dgc_find_torch_python)
  if(DGC_PYTHON_EXECUTABLE)
    set(candidates ${DGC_PYTHON_EXECUTABLE})
  else()
    set(candidates "")
    foreach(folder IN ITEMS $ENV{VIRTUAL_ENV}/bin /usr/bin /usr/local/bin)
      if(EXISTS ${folder}/python3)
        list(APPEND candidates ${folder}/python3)
      endif()
    endforeach()
    find_program(DGC_PYTHON_ON_PATH python3)
    mark_as_advanced(DGC_PYTHON_ON_PATH)
    if(DGC_PYTHON_ON_PATH)
      list(APPEND candidates ${DGC_PYTHON_ON_PATH})
    endif()
  endif()
  foreach(candidate IN LISTS candidates)
    # Importing takes seconds; that the package is there is enough.
    execute_process(
      COMMAND ${candidate} -c "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
      RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
    if(status EQUAL 0)
      set(DGC_PYTHON_EXECUTABLE ${candidate} CACHE FILEPATH "A python3 that has PyTorch")
      return()
    endif()
  endforeach()
  set(python_missing "no python3 has PyTorch (python3-torch; or set DGC_PYTHON_EXECUTABLE)"
      PARENT_SCOPE)
endfunction()

dgc_find_torch_python()
if(NOT python_missing)
  # Under names of our own: the tests look for any python3.
  execute_process(
    COMMAND ${DGC_PYTHON_EXECUTABLE} -c
            "import sysconfig as s; print(s.get_path('include'), s.get_config_var('EXT_SUFFIX'), sep=';')"
    OUTPUT_VARIABLE python_facts OUTPUT_STRIP_TRAILING_WHITESPACE)
  list(GET python_facts 0 python_include)
  list(GET python_facts 1 DGC_PYTHON_SUFFIX)
  find_path(DGC_PYBIND11_INCLUDE_DIR pybind11/pybind11.h)
  if(NOT EXISTS ${python_include}/Python.h)
    set(python_missing "${DGC_PYTHON_EXECUTABLE} has no headers (python3-dev)")
  elseif(NOT DGC_PYBIND11_INCLUDE_DIR)
    set(python_missing "no pybind11 (pybind11-dev)")
  else()
    set(python_found ON)
  endif()
endif()

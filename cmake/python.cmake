# Finds what the PyTorch package needs: an interpreter with headers, and pybind11. Sets
# DGC_PYTHON_EXECUTABLE, and python_found or python_missing (why not).

# The interpreter that has PyTorch, which need not be the first python3 on PATH: the tests run with it.
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

if(SKBUILD)
  # pip builds for its own interpreter. PyTorch is not needed to build, and not there.
  set(DGC_PYTHON_EXECUTABLE ${Python_EXECUTABLE})
else()
  dgc_find_torch_python()
endif()
if(NOT python_missing)
  # Under names of our own: the tests look for any python3.
  execute_process(
    COMMAND ${DGC_PYTHON_EXECUTABLE} -c [[
import sysconfig
where = sysconfig.get_path("platlib", "posix_prefix", {"base": ".", "platbase": "."})
print(sysconfig.get_path("include"), sysconfig.get_config_var("EXT_SUFFIX"), where, sep=";")]]
    OUTPUT_VARIABLE python_facts OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  list(GET python_facts 0 python_include)
  list(GET python_facts 1 DGC_PYTHON_SUFFIX)
  list(GET python_facts 2 python_install_dir)  # below a prefix, as in a virtual environment
  if(SKBUILD)
    set(python_install_dir .)  # the top of the wheel
  endif()
  set(PYBIND11_NOPYTHON ON)  # the headers alone
  find_package(pybind11 QUIET CONFIG)
  if(NOT EXISTS ${python_include}/Python.h)
    set(python_missing "${DGC_PYTHON_EXECUTABLE} has no headers (python3-dev)")
  elseif(NOT pybind11_FOUND)
    set(python_missing "no pybind11 (pybind11-dev)")
  else()
    set(python_found ON)
  endif()
endif()

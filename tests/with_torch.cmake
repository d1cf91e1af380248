# Tests of everything that touches PyTorch. A build for another libtorch has these alone.
if(DGC_WITH_TORCH)
  dgc_test(test_torch TORCH TIMEOUT 600 LIBRARIES dgc_torch FILES
    torch/test_local_checkpoint.cpp
    torch/test_local_steps.cpp
    torch/test_sgd.cpp
    torch/test_sgd_checkpoint.cpp
    torch/test_sgd_equivalence.cpp
    torch/test_sgd_faults.cpp
    torch/test_sgd_gradients.cpp
    torch/test_sgd_parts.cpp)
  dgc_test(test_models TORCH TIMEOUT 600 LIBRARIES dgc_models FILES
    models/test_gpt.cpp
    models/test_models.cpp
    models/test_sequences.cpp)
  dgc_test(test_train TORCH TIMEOUT 600 FILES train/test_tasks.cpp LIBRARIES dgc_train)
endif()
if(DGC_WITH_TORCH AND DGC_WITH_GLOO AND NOT DGC_SANITIZE)
  add_executable(train_with_checkpoints torch/train_with_checkpoints.cpp)
  target_link_libraries(train_with_checkpoints PRIVATE dgc_torch dgc_light_flags)
  dgc_use_torch_headers(train_with_checkpoints)
  dgc_script(kill_and_resume torch/test_kill.py $<TARGET_FILE:train_with_checkpoints> 3)

  # The example, on Debian's dataset-fashion-mnist.
  set(DGC_FASHION_MNIST /usr/share/datasets/fashion-mnist CACHE PATH "Folder of Fashion-MNIST, .gz")
  if(EXISTS ${DGC_FASHION_MNIST})
    set(fashion_mnist ${PROJECT_BINARY_DIR}/fashion-mnist)
    dgc_script(unpack_fashion_mnist examples/unpack_dataset.py ${DGC_FASHION_MNIST} ${fashion_mnist})
    dgc_script(libtorch_example examples/test_libtorch.py $<TARGET_FILE:mnist> ${fashion_mnist}
               ${mpirun})
    set_tests_properties(unpack_fashion_mnist PROPERTIES FIXTURES_SETUP fashion_mnist)
    set_tests_properties(libtorch_example PROPERTIES FIXTURES_REQUIRED fashion_mnist)
  endif()
endif()

# The installed package, used by a project of its own. Sanitized libraries are not installed.
if(NOT DGC_SANITIZE)
  add_test(NAME installed_package
           COMMAND ${CMAKE_COMMAND} -DBUILD_DIR=${PROJECT_BINARY_DIR}
                   -DSOURCE_DIR=${CMAKE_CURRENT_SOURCE_DIR}/package
                   -DEXAMPLES=${PROJECT_SOURCE_DIR}/examples
                   -DWITH_TORCH=${DGC_WITH_TORCH}
                   -DCORE_BUILD=${DGC_CORE_BUILD}
                   -P ${CMAKE_CURRENT_SOURCE_DIR}/package/test_package.cmake)
endif()

# `dgc train` from the outside.
if(DGC_BUILD_APPS AND DGC_WITH_TORCH AND DGC_WITH_GLOO AND NOT DGC_SANITIZE)
  foreach(part IN ITEMS same resume ratios errors files)
    dgc_script(train_${part} train/test_train.py ${part} $<TARGET_FILE:dgc_command> ${mpirun})
  endforeach()
  dgc_script(train_local train/test_local.py $<TARGET_FILE:dgc_command>)
  foreach(part IN ITEMS WrongWords Runs Churn)
    string(TOLOWER hub_${part} name)
    dgc_script(${name} hub/test_commands.py $<TARGET_FILE:dgc_command>
               ${PROJECT_SOURCE_DIR}/scripts/reproduce ${part})
  endforeach()
  dgc_script(strangers train/test_strangers.py $<TARGET_FILE:dgc_command>)
  if(DGC_PYTHON_EXECUTABLE)
    dgc_script(torchrun train/test_torchrun.py $<TARGET_FILE:dgc_command> ${DGC_PYTHON_EXECUTABLE})
  endif()
endif()

# The PyTorch package, with the interpreter that has PyTorch.
if(DGC_WITH_PYTHON)
  add_subdirectory(python)
endif()

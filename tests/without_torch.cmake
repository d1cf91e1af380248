# Tests of what needs no libtorch. With DGC_CORE_BUILD they are those of the other build.
set(with_threads
  base/test_parallel.cpp
  base/test_patient_writer.cpp
  compress/test_compressor.cpp
  engine/test_address_store.cpp
  engine/test_emulated_link.cpp
  engine/test_group.cpp
  exchange/test_cost.cpp
  exchange/test_exchange.cpp
  exchange/test_free_ratio.cpp
  exchange/test_global_momentum.cpp
  exchange/test_owner.cpp)
set(without_threads
  base/test_difference.cpp
  base/test_error.cpp
  checkpoint/test_crash.cpp
  checkpoint/test_damage.cpp
  checkpoint/test_folder.cpp
  compress/test_kernels.cpp
  compress/test_schedule.cpp
  compress/test_select.cpp
  compress/test_selection.cpp
  compress/test_state.cpp
  engine/test_introduction.cpp
  exchange/test_options.cpp
  exchange/test_senders.cpp
  wire/test_golden.cpp
  wire/test_reject.cpp
  wire/test_frame_stream.cpp
  wire/test_rice.cpp
  wire/test_wire.cpp)
if(DGC_SANITIZE MATCHES "thread")
  dgc_test(test_core TIMEOUT 600 FILES ${with_threads})
  return()  # and no other test
endif()
dgc_test(test_core TIMEOUT 600 FILES ${with_threads} ${without_threads})
set_source_files_properties(base/test_error.cpp PROPERTIES
  COMPILE_DEFINITIONS "DGC_ERROR_HEADER=\"${PROJECT_SOURCE_DIR}/include/dgc/error.h\"")
set_source_files_properties(checkpoint/test_folder.cpp wire/test_golden.cpp PROPERTIES
  COMPILE_DEFINITIONS "DGC_GOLDEN_DIR=\"${CMAKE_CURRENT_SOURCE_DIR}/golden\";DGC_FORMAT_DOC=\"${PROJECT_SOURCE_DIR}/docs/format.md\"")
dgc_test(test_data LIBRARIES dgc_data ZLIB::ZLIB JPEG::JPEG PkgConfig::DGC_SNDFILE FILES
  data/test_catalogue.cpp
  data/test_images.cpp
  data/test_pictures.cpp
  data/test_plain_text.cpp
  data/test_speech.cpp
  data/test_text.cpp)
dgc_test(test_report FILES report/test_report.cpp LIBRARIES dgc_report)
target_compile_definitions(test_report PRIVATE DGC_GOLDEN_DIR="${CMAKE_CURRENT_SOURCE_DIR}/golden")
dgc_test(test_process FILES process/test_launch_folder.cpp LIBRARIES dgc_process)
dgc_test(test_plan FILES plan/test_hub.cpp plan/test_plan.cpp LIBRARIES dgc_plan)
dgc_test(test_settings FILES train/test_settings.cpp train/test_budget.cpp LIBRARIES dgc_train_settings)
dgc_test(test_hub TIMEOUT 300 LIBRARIES dgc_hub FILES
  hub/toy.cpp
  hub/toy_check.cpp
  hub/test_churn.cpp
  hub/test_formats.cpp
  hub/test_hostile.cpp
  hub/test_local_hub.cpp
  hub/test_leases.cpp
  hub/test_limits.cpp
  hub/test_pace.cpp
  hub/test_rounds.cpp
  hub/test_saved.cpp
  hub/test_terms_run.cpp
  hub/test_requests.cpp)
dgc_test(test_hub_server LIBRARIES dgc_hub OpenSSL::Crypto FILES
  hub/test_packet_example.cpp
  hub/test_server.cpp)
set_source_files_properties(hub/test_packet_example.cpp PROPERTIES
  COMPILE_DEFINITIONS "DGC_HUB_DOC=\"${PROJECT_SOURCE_DIR}/docs/hub.md\"")

# Groups of processes.
dgc_test(test_processes TIMEOUT 600 FILES
  engine/test_processes.cpp
  engine/test_shared.cpp
  exchange/test_process_exchange.cpp)
if(DGC_WITH_GLOO)
  dgc_test(test_gloo FILES engine/test_gloo.cpp)
endif()
if(DGC_WITH_MPI AND NOT DGC_SANITIZE)
  add_executable(test_mpi engine/test_mpi.cpp)
  target_link_libraries(test_mpi PRIVATE dgc_test_support MPI::MPI_CXX)
  foreach(ranks IN ITEMS 1 2 3 4 7 8)
    add_test(NAME mpi_conformance_${ranks}
             COMMAND ${mpirun} -n ${ranks} $<TARGET_FILE:test_mpi> conformance)
  endforeach()
  foreach(what IN ITEMS owned ahead first_cause stalled)
    add_test(NAME mpi_${what} COMMAND ${mpirun} -n 3 $<TARGET_FILE:test_mpi> ${what})
  endforeach()
  set_tests_properties(mpi_conformance_1 mpi_conformance_2 mpi_conformance_3 mpi_conformance_4
                       mpi_conformance_7 mpi_conformance_8 mpi_owned mpi_ahead mpi_first_cause mpi_stalled
                       PROPERTIES TIMEOUT 120 FAIL_REGULAR_EXPRESSION "test_mpi: failed")
endif()

# Files that the C++ side writes, read by a decoder written from docs/format.md alone.
add_executable(write_samples wire/write_samples.cpp)
target_link_libraries(write_samples PRIVATE dgc_test_support)
dgc_script(reference_decoder wire/test_reference_decoder.py $<TARGET_FILE:write_samples>
           ${CMAKE_CURRENT_SOURCE_DIR}/golden ${PROJECT_SOURCE_DIR}/docs/format.md)

# A hub, looked at by a browser, and joined by a member written from docs/hub.md alone.
add_executable(serve_toy hub/serve_toy.cpp)
target_link_libraries(serve_toy PRIVATE dgc_hub dgc_light_flags fmt::fmt)
dgc_use_headers(dgc_common_headers serve_toy)
dgc_script(hub_reference_client hub/test_reference_client.py $<TARGET_FILE:serve_toy>
           ${PROJECT_SOURCE_DIR}/docs/hub.md)
dgc_script(hub_page_browser hub/test_page_browser.py $<TARGET_FILE:serve_toy>)

if(DGC_BUILD_APPS)
  dgc_script(command_line apps/test_command_line.py $<TARGET_FILE:dgc_command>
             $<TARGET_FILE:write_samples>)
  dgc_script(report_browser report/test_browser.py $<TARGET_FILE:dgc_command>)
endif()

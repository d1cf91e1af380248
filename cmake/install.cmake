include(CMakePackageConfigHelpers)

install(TARGETS dgc_core EXPORT dgcTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(TARGET dgc_command)
  install(TARGETS dgc_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY include/dgc DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_BINARY_DIR}/include/dgc/version.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/dgc)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/dgc)
install(EXPORT dgcTargets NAMESPACE dgc:: DESTINATION ${package_dir})
configure_package_config_file(cmake/dgcConfig.cmake.in dgcConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(dgcConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/dgcConfig.cmake ${PROJECT_BINARY_DIR}/dgcConfigVersion.cmake
              cmake/dependencies.cmake
        DESTINATION ${package_dir})

configure_file(cmake/dgc.pc.in dgc.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/dgc.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

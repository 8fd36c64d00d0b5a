# cmake --install build/cpu [--prefix /usr/local] [--component server|clients|dev|docs|model]
# cpack --config build/cpu/CPackConfig.cmake      # the same as Debian packages

# Programs are installed beside the module that they load; links put them into the PATH.
set(OVQ_SERVER_PROGRAMS ovq-server ovq-inspect)
set(OVQ_CLIENT_PROGRAMS ovq-chat ovq-load ovq-admin)
file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/links")
function(ovq_install_programs component)
  install(TARGETS ${ARGN} RUNTIME DESTINATION lib/ovq-server COMPONENT ${component})
  # The folder may contain cuBLASLt, too.
  set_target_properties(${ARGN} PROPERTIES INSTALL_RPATH "$<$<BOOL:${WITH_CUDA}>:$ORIGIN>")
  foreach(program ${ARGN})
    set(LINK "${CMAKE_BINARY_DIR}/links/${program}")
    file(CREATE_LINK "../lib/ovq-server/${program}" "${LINK}" SYMBOLIC)
    install(FILES "${LINK}" DESTINATION bin COMPONENT ${component})
  endforeach()
endfunction()
ovq_install_programs(server ${OVQ_SERVER_PROGRAMS})
ovq_install_programs(clients ${OVQ_CLIENT_PROGRAMS})
install(TARGETS ovq_pieces LIBRARY DESTINATION lib/ovq-server COMPONENT server)

# Replaces /usr/local by the prefix in files that contain paths. Below the prefix /usr the
# configuration is installed in /etc; for other prefixes users copy it there.
install(CODE "set(UNITS \"${PROJECT_SOURCE_DIR}/deploy/systemd\")" COMPONENT server)
install(CODE [[
  function(ovq_with_prefix from to)
    file(READ "${UNITS}/${from}" TEXT)
    string(REPLACE "/usr/local" "${CMAKE_INSTALL_PREFIX}" TEXT "${TEXT}")
    file(WRITE "$ENV{DESTDIR}${to}" "${TEXT}")
    file(CHMOD "$ENV{DESTDIR}${to}" PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
    message(STATUS "Installing: $ENV{DESTDIR}${to}")
  endfunction()
  get_filename_component(CMAKE_INSTALL_PREFIX "${CMAKE_INSTALL_PREFIX}" ABSOLUTE)
  ovq_with_prefix(ovq-server.service "${CMAKE_INSTALL_PREFIX}/lib/systemd/system/ovq-server.service")
  ovq_with_prefix(ovq-server.conf "${CMAKE_INSTALL_PREFIX}/share/ovq-server/ovq-server.conf")
  if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
    ovq_with_prefix(ovq-server.conf /etc/ovq-server/ovq-server.conf)
  endif()
]] COMPONENT server)
install(FILES deploy/systemd/ovq-server.sysusers DESTINATION lib/sysusers.d RENAME ovq-server.conf
        COMPONENT server)
install(DIRECTORY deploy/haproxy deploy/prometheus deploy/grafana DESTINATION share/ovq-server
        COMPONENT server PATTERN __pycache__ EXCLUDE)
install(DIRECTORY models/code-27m DESTINATION share/ovq-server/models
        COMPONENT model EXCLUDE_FROM_ALL)
install(DIRECTORY proto/ovq DESTINATION include COMPONENT dev FILES_MATCHING PATTERN "*.proto")

# The documentation keeps its folders and includes the files that it links to, so that its links
# work.
set(DOC share/doc/ovq-server)
install(FILES README.md LICENSE DESTINATION ${DOC} COMPONENT docs)
install(DIRECTORY docs DESTINATION ${DOC} COMPONENT docs)
foreach(file clients/python/README.md clients/python/examples/tour.py training/README.md
        kernels/mixers/closest_pair/README.md kernels/mixers/key_diff/README.md models/code-27m/README.md
        models/code-27m/corpus.csv models/python-bytes/README.md models/scripted-chat/README.md
        training/ovq_torch/README.md)
  get_filename_component(folder ${file} DIRECTORY)
  install(FILES ${file} DESTINATION ${DOC}/${folder} COMPONENT docs)
endforeach()

# --- Debian packages -----------------------------------------------------------------------------
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_COMPONENTS_ALL server model clients dev docs)
set(CPACK_PACKAGE_NAME ovq-server)
set(CPACK_PACKAGE_CONTACT "The ovq-server developers <ovq-server@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "inference server for language models with bounded memory")
set(CPACK_PACKAGE_DESCRIPTION_FILE "${PROJECT_SOURCE_DIR}/deploy/debian/description")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_COMPONENT_MODEL_GROUP server)
foreach(component server clients dev docs)
  string(TOUPPER ${component} UPPER)
  set(CPACK_COMPONENT_${UPPER}_GROUP ${component})
endforeach()
set(CPACK_DEBIAN_SERVER_PACKAGE_NAME ovq-server)
set(CPACK_DEBIAN_CLIENTS_PACKAGE_NAME ovq-clients)
set(CPACK_DEBIAN_DEV_PACKAGE_NAME ovq-server-dev)
set(CPACK_DEBIAN_DOCS_PACKAGE_NAME ovq-server-doc)
set(CPACK_DEBIAN_SERVER_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_CLIENTS_PACKAGE_SHLIBDEPS ON)
# libonig5 is loaded, not linked (model/tokenizers/regex.cc); the others create the server's user.
set(CPACK_DEBIAN_SERVER_PACKAGE_DEPENDS "libonig5, systemd-standalone-sysusers | systemd")
set(CPACK_DEBIAN_SERVER_PACKAGE_RECOMMENDS "ovq-clients, systemd")
set(CPACK_DEBIAN_SERVER_PACKAGE_SUGGESTS "ovq-server-doc, haproxy, prometheus")
foreach(component dev docs)
  string(TOUPPER ${component} UPPER)
  set(CPACK_DEBIAN_${UPPER}_PACKAGE_ARCHITECTURE all)
endforeach()
set(CPACK_DEBIAN_SERVER_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_SERVER_PACKAGE_CONTROL_EXTRA
    "${PROJECT_SOURCE_DIR}/deploy/debian/conffiles;${PROJECT_SOURCE_DIR}/deploy/debian/postinst;${PROJECT_SOURCE_DIR}/deploy/debian/prerm;${PROJECT_SOURCE_DIR}/deploy/debian/postrm")
include(CPack)

# Every third-party library, all of them Debian packages (scripts/bootstrap installs them,
# docs/dependencies.md says why each is here). Nothing is vendored and nothing is downloaded.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(absl REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(RocksDB CONFIG REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(CURL REQUIRED)
find_package(hwy CONFIG REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)
find_package(GTest REQUIRED)
find_package(benchmark REQUIRED)
find_package(JPEG REQUIRED)
find_package(PNG REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)

# Debian's dnnl-config.cmake asks for OpenCL's development files, which the CPU engine does not
# need.
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(milepost_dnnl INTERFACE)
target_link_libraries(milepost_dnnl INTERFACE ${DNNL_LIBRARY})

find_library(SYSTEMD_LIBRARY systemd REQUIRED)
add_library(milepost_systemd INTERFACE)
target_link_libraries(milepost_systemd INTERFACE ${SYSTEMD_LIBRARY})

find_library(XXHASH_LIBRARY xxhash REQUIRED)
add_library(milepost_xxhash INTERFACE)
target_link_libraries(milepost_xxhash INTERFACE ${XXHASH_LIBRARY})

find_library(MICROHTTPD_LIBRARY microhttpd REQUIRED)
add_library(milepost_microhttpd INTERFACE)
target_link_libraries(milepost_microhttpd INTERFACE ${MICROHTTPD_LIBRARY})

find_library(ARCHIVE_LIBRARY archive REQUIRED)
add_library(milepost_archive INTERFACE)
target_link_libraries(milepost_archive INTERFACE ${ARCHIVE_LIBRARY})

find_library(URING_LIBRARY uring REQUIRED)
add_library(milepost_uring INTERFACE)
target_link_libraries(milepost_uring INTERFACE ${URING_LIBRARY})

find_program(PROTOC protoc REQUIRED)
find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)
find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

# For programs that make many small objects. A sanitizer brings its own.
add_library(milepost_allocator INTERFACE)
if(NOT MILEPOST_SANITIZE)
  find_library(MIMALLOC mimalloc REQUIRED)
  target_link_libraries(milepost_allocator INTERFACE
    -Wl,--push-state,--no-as-needed ${MIMALLOC} -Wl,--pop-state)
endif()

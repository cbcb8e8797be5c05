# One CMake target per folder, made by these helpers. The target is named after its folder
# (engine/graph -> engine_graph); sources are the folder's own *.cc and SOURCES; DEPS are the only
# folders whose headers it may include, which scripts/checks/layering.py verifies.

add_library(milepost_options INTERFACE)
set(warnings -Wall -Wextra -Werror -Wno-unused-parameter -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND warnings -Wno-subobject-linkage)  # it takes a file that another includes for a header
endif()
list(JOIN warnings "," cuda_host_warnings)
target_compile_options(milepost_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${warnings}>"
  "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Werror all-warnings -Xcompiler=${cuda_host_warnings}>")
target_include_directories(milepost_options INTERFACE ${PROJECT_SOURCE_DIR})
target_link_libraries(milepost_options INTERFACE Threads::Threads)
if(MILEPOST_SANITIZE)
  add_compile_options(-fsanitize=${MILEPOST_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${MILEPOST_SANITIZE})
  if(MILEPOST_SANITIZE MATCHES "thread")
    add_compile_definitions(MILEPOST_TSAN=1)
    # Abseil, Protocol Buffers and gRPC with its instrumentation; also for what they load in turn.
    set(tsan_home /opt/milepost/tsan)
    if(DEFINED ENV{MILEPOST_TSAN_HOME})
      set(tsan_home $ENV{MILEPOST_TSAN_HOME})
    endif()
    if(NOT EXISTS ${tsan_home}/built)
      message(FATAL_ERROR
        "${tsan_home} has no libraries for ThreadSanitizer: run scripts/bootstrap --tsan")
    endif()
    add_link_options(-Wl,--disable-new-dtags,-rpath,${tsan_home}/lib)
  endif()
endif()
if(MILEPOST_TIDY)
  find_program(CLANG_TIDY clang-tidy REQUIRED)
  set(CMAKE_CXX_CLANG_TIDY ${CLANG_TIDY})
endif()

# What is not measured compiles in three quarters of the time with these: the files of tests, and
# generated messages.
set(milepost_quick_options)
if(CMAKE_CXX_FLAGS MATCHES "-O2")
  set(milepost_quick_options $<$<COMPILE_LANGUAGE:CXX>:-O1>)
endif()

option(MILEPOST_UNITY "Compile the files of a target several at a time" ON)
set(milepost_unity_most 8)

# milepost_unity(<variable> <target> <files>...)
# Sets the variable to what is compiled for the target: instead of every few *.cc a file that
# includes them. Most of a compiler's time goes into the headers and templates of libraries, which
# these files then share. A name in an anonymous namespace must therefore be the only one of its
# target; two of them do not compile. Left alone: files that Highway compiles several times.
# CMake's UNITY_BUILD writes absolute paths, with which no two checkouts share a compiler cache.
function(milepost_unity variable target)
  set(lines)
  set(compiled)
  foreach(file ${ARGN})
    cmake_path(ABSOLUTE_PATH file)
    set(alone "is the option's choice")
    if(MILEPOST_UNITY AND file MATCHES "\\.cc$")
      file(STRINGS ${file} alone REGEX "hwy/foreach_target.h")
    endif()
    if(NOT alone STREQUAL "")
      list(APPEND compiled ${file})
    else()
      file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${file})
      list(APPEND lines "#include \"${path}\"")
    endif()
  endforeach()
  list(LENGTH lines left)
  set(begin 0)
  while(left GREATER 0)
    math(EXPR parts "(${left} + ${milepost_unity_most} - 1) / ${milepost_unity_most}")
    math(EXPR count "(${left} + ${parts} - 1) / ${parts}")
    list(SUBLIST lines ${begin} ${count} part)
    list(JOIN part "\n" part)
    set(file ${CMAKE_CURRENT_BINARY_DIR}/${target}_${begin}.cc)
    file(CONFIGURE OUTPUT ${file} CONTENT "${part}\n" @ONLY)
    list(APPEND compiled ${file})
    math(EXPR begin "${begin} + ${count}")
    math(EXPR left "${left} - ${count}")
  endwhile()
  set(${variable} ${compiled} PARENT_SCOPE)
endfunction()

# milepost_rooms(<variable> <suffix>)
# Sets the variable to the files of the rooms of engine/ops and engine/optim that end so, as
# <room>_cpu.cc. Suffix "":
# those that end in no suffix of milepost_room_suffixes, without tests; "test": their tests.
set(milepost_room_suffixes contract reference cpu cuda cpu_kernel cuda_kernel)
function(milepost_rooms variable suffix)
  if(suffix)
    set(type cc)
    if(suffix STREQUAL "cuda_kernel")
      set(type cu)
    endif()
    file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/engine/ops/*/*_${suffix}.${type}
      ${PROJECT_SOURCE_DIR}/engine/optim/*/*_${suffix}.${type})
    if(suffix STREQUAL "test")
      list(FILTER files EXCLUDE REGEX "_kernel_test\\.cc$")
    endif()
  else()
    file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/engine/ops/*/*.cc)
    list(JOIN milepost_room_suffixes "|" suffixes)
    list(FILTER files EXCLUDE REGEX "_(${suffixes}|test)\\.cc$|/ops/reference/")
  endif()
  set(${variable} ${files} PARENT_SCOPE)
endfunction()

# milepost_library(DEPS <targets>... [TEST_DEPS <targets>...] [CPU_FILTER <gtest filter>]
#   [SOURCES <files>...] [TESTS <files>...])
# Library from *.cc (without *_test.cc and *_main.cc), *.cu where there is CUDA and, where there are
# *_test.cc, a test binary <target>_test whose every case is registered with ctest. SOURCES,
# TESTS: of other folders.
function(milepost_library)
  cmake_parse_arguments(ARG "" "CPU_FILTER" "DEPS;TEST_DEPS;SOURCES;TESTS" ${ARGN})
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  string(REPLACE "/" "_" target ${folder})
  file(GLOB sources CONFIGURE_DEPENDS *.cc)
  file(GLOB tests CONFIGURE_DEPENDS *_test.cc)
  file(GLOB mains CONFIGURE_DEPENDS *_main.cc)
  list(APPEND sources ${ARG_SOURCES})
  list(APPEND tests ${ARG_TESTS})
  if(tests)
    list(REMOVE_ITEM sources ${tests})
  endif()
  if(mains)
    list(REMOVE_ITEM sources ${mains})
  endif()
  if(MILEPOST_HAVE_CUDA)
    file(GLOB cuda_sources CONFIGURE_DEPENDS *.cu)
    list(APPEND sources ${cuda_sources})
  endif()
  if(sources)
    milepost_unity(sources ${target} ${sources})
    add_library(${target} STATIC ${sources})
    target_link_libraries(${target} PUBLIC milepost_options ${ARG_DEPS})
  else()
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE milepost_options ${ARG_DEPS})
  endif()
  if(tests AND BUILD_TESTING)
    milepost_test(NAME ${target}_test SOURCES ${tests} DEPS ${target} ${ARG_TEST_DEPS}
      CPU_FILTER "${ARG_CPU_FILTER}")
  endif()
endfunction()

# Instruction sets that oneDNN's kernels are tested for beside the machine's best: what is more than
# the machine has is taken as its best.
set(milepost_cpu_isas AVX2 AVX512_CORE)

# milepost_test(NAME <name> SOURCES <files>... [DEPS <targets>...] [TIMEOUT <s>]
#   [FILTER <gtest filter>] [CPU_FILTER <gtest filter>])
# CPU_FILTER: cases whose result depends on what oneDNN finds in the CPU. They are registered once
# more for each of milepost_cpu_isas, as <name>.<isa>.<case>.
function(milepost_test)
  cmake_parse_arguments(ARG "" "NAME;TIMEOUT;FILTER;CPU_FILTER" "SOURCES;DEPS" ${ARGN})
  if(NOT BUILD_TESTING)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(MILEPOST_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 10")  # for hangs alone: these builds are slow
  endif()
  if(NOT ARG_FILTER)
    set(ARG_FILTER "*")
  endif()
  milepost_unity(sources ${ARG_NAME} ${ARG_SOURCES})
  add_executable(${ARG_NAME} ${sources})
  target_link_libraries(${ARG_NAME} PRIVATE milepost_options ${ARG_DEPS} GTest::gmock
    GTest::gtest_main)
  target_compile_options(${ARG_NAME} PRIVATE ${milepost_quick_options})
  set_target_properties(${ARG_NAME} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test)
  milepost_discover(${ARG_NAME} ${ARG_NAME} "${ARG_FILTER}" ${ARG_TIMEOUT})
  if(NOT ARG_CPU_FILTER)
    return()
  endif()
  foreach(isa ${milepost_cpu_isas})
    milepost_discover(${ARG_NAME} ${ARG_NAME}.${isa} "${ARG_CPU_FILTER}" ${ARG_TIMEOUT}
      "DNNL_MAX_CPU_ISA=${isa}")
  endforeach()
endfunction()

# Of every test. die_after_fork: some fork children, with a limit of their own or to be killed,
# whose threads do what the test is about.
set(tsan_suppressions "${PROJECT_SOURCE_DIR}/cmake/tsan.supp")
set(milepost_test_environment "MILEPOST_BIN_DIR=${CMAKE_BINARY_DIR}/bin"
  "TSAN_OPTIONS=ignore_noninstrumented_modules=1:die_after_fork=0:suppressions=${tsan_suppressions}"
  "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/cmake/lsan.supp:print_suppressions=0")

# milepost_discover(<target> <prefix> <gtest filter> <timeout> [<variable=value>...])
# Registers a test binary's cases with ctest, in their environment. This is set by a file of its
# own, which ctest reads afterwards: gtest_discover_tests takes all but the first of several
# variables for properties.
function(milepost_discover target prefix filter timeout)
  set(environment ${milepost_test_environment} "OMP_NUM_THREADS=1" ${ARGN})
  include(GoogleTest)
  gtest_discover_tests(${target} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    TEST_FILTER "${filter}" TEST_LIST ${prefix}_tests
    TEST_PREFIX "${prefix}." WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    PROPERTIES TIMEOUT ${timeout})
  set(file ${CMAKE_CURRENT_BINARY_DIR}/${prefix}_environment.cmake)
  file(WRITE ${file} "if(${prefix}_tests)\n  set_tests_properties(\${${prefix}_tests} PROPERTIES"
    " ENVIRONMENT [==[${environment}]==])\nendif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${file})
endfunction()

# milepost_binary(NAME <name> SOURCES <files>... DEPS <targets>...)  -> build/<preset>/bin/<name>
function(milepost_binary)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES} $<TARGET_OBJECTS:common_steady_waits>)
  target_link_libraries(${ARG_NAME} PRIVATE milepost_options ${ARG_DEPS})
endfunction()

# milepost_benchmark(NAME <name> SOURCES <files>... DEPS <targets>...)
#   -> build/<preset>/bench/<name>
function(milepost_benchmark)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS" ${ARGN})
  milepost_unity(sources ${ARG_NAME} ${ARG_SOURCES})
  add_executable(${ARG_NAME} ${sources})
  target_link_libraries(${ARG_NAME} PRIVATE milepost_options ${ARG_DEPS})
  set_target_properties(${ARG_NAME} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
endfunction()

# The CUDA backend's compiler and libraries. Sets MILEPOST_HAVE_CUDA; where it is on, the language
# CUDA is enabled and there are the targets milepost_cudart, milepost_cublaslt, milepost_cudnn,
# milepost_nvrtc, milepost_nccl and milepost_cudnn_frontend. A build without CUDA needs none of it.
#
# Looked at, in this order: MILEPOST_CUDA_HOME (CMake or environment), /opt/milepost/cuda (where
# `scripts/bootstrap --cuda` puts what the system lacks), the toolkit of the nvcc in PATH,
# /usr/local/cuda.
set(MILEPOST_CUDA AUTO CACHE STRING
  "The CUDA backend: ON, OFF, or AUTO: where the toolkit and its libraries are found")
set_property(CACHE MILEPOST_CUDA PROPERTY STRINGS AUTO ON OFF)
set(MILEPOST_CUDA_ARCHITECTURES "90a-real" CACHE STRING
  "Devices to compile for, as CMAKE_CUDA_ARCHITECTURES has it")
set(MILEPOST_HAVE_CUDA OFF)
if(NOT MILEPOST_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "MILEPOST_CUDA is \"${MILEPOST_CUDA}\"; it must be AUTO, ON or OFF")
endif()

# milepost_cuda_library(NAME HEADER LIBRARY): an INTERFACE target milepost_NAME, or an entry in
# cuda_missing.
macro(milepost_cuda_library name header library)
  find_path(MILEPOST_${name}_INCLUDE ${header} HINTS ${cuda_roots} PATH_SUFFIXES include)
  find_library(MILEPOST_${name}_LIBRARY ${library} HINTS ${cuda_roots} PATH_SUFFIXES lib64 lib)
  mark_as_advanced(MILEPOST_${name}_INCLUDE MILEPOST_${name}_LIBRARY)
  if(NOT MILEPOST_${name}_INCLUDE)
    list(APPEND cuda_missing ${header})
  endif()
  if(NOT MILEPOST_${name}_LIBRARY)
    list(APPEND cuda_missing lib${library}.so)
  endif()
  if(NOT TARGET milepost_${name})
    add_library(milepost_${name} INTERFACE)
    target_include_directories(milepost_${name} SYSTEM INTERFACE ${MILEPOST_${name}_INCLUDE})
    target_link_libraries(milepost_${name} INTERFACE ${MILEPOST_${name}_LIBRARY})
  endif()
endmacro()

if(NOT MILEPOST_CUDA STREQUAL "OFF")
  set(cuda_home /opt/milepost/cuda)
  if(MILEPOST_CUDA_HOME)
    set(cuda_home ${MILEPOST_CUDA_HOME})
  elseif(DEFINED ENV{MILEPOST_CUDA_HOME})
    set(cuda_home $ENV{MILEPOST_CUDA_HOME})
  endif()
  set(cuda_missing)
  find_program(MILEPOST_NVCC nvcc HINTS ${cuda_home}/toolkit/bin ENV CUDA_PATH
    PATHS /usr/local/cuda/bin PATH_SUFFIXES bin)
  mark_as_advanced(MILEPOST_NVCC)
  if(MILEPOST_NVCC)
    get_filename_component(nvcc_path ${MILEPOST_NVCC} REALPATH)
    get_filename_component(cuda_toolkit ${nvcc_path} DIRECTORY)
    get_filename_component(cuda_toolkit ${cuda_toolkit} DIRECTORY)
  else()
    list(APPEND cuda_missing nvcc)
  endif()
  set(cuda_roots ${cuda_home}/toolkit ${cuda_toolkit} /usr/local/cuda)
  milepost_cuda_library(cudart cuda_runtime.h cudart)
  milepost_cuda_library(cublaslt cublasLt.h cublasLt)
  milepost_cuda_library(cudnn cudnn.h cudnn)
  # cudnn-frontend's headers call it.
  milepost_cuda_library(nvrtc nvrtc.h nvrtc)
  milepost_cuda_library(nccl nccl.h nccl)
  # Headers only.
  find_path(MILEPOST_cudnn_frontend_INCLUDE cudnn_frontend.h
    HINTS ${cuda_home}/cudnn-frontend ${cuda_roots} PATH_SUFFIXES include)
  mark_as_advanced(MILEPOST_cudnn_frontend_INCLUDE)
  if(NOT MILEPOST_cudnn_frontend_INCLUDE)
    list(APPEND cuda_missing cudnn_frontend.h)
  endif()
  # The driver library's stand-in, which some tests load where there is no driver.
  find_file(MILEPOST_CUDA_DRIVER_STUB libcuda.so HINTS ${cuda_roots}
    PATH_SUFFIXES lib64/stubs lib/stubs NO_DEFAULT_PATH)
  mark_as_advanced(MILEPOST_CUDA_DRIVER_STUB)
  if(cuda_missing)
    list(JOIN cuda_missing ", " cuda_missing)
    set(cuda_message "the CUDA backend needs ${cuda_missing}; `scripts/bootstrap --cuda` gets it")
    if(MILEPOST_CUDA STREQUAL "ON")
      message(FATAL_ERROR "MILEPOST_CUDA=ON: ${cuda_message}")
    endif()
    message(STATUS "CUDA: off: ${cuda_message}")
  else()
    set(MILEPOST_HAVE_CUDA ON)
  endif()
endif()

if(MILEPOST_HAVE_CUDA)
  add_library(milepost_cudnn_frontend INTERFACE)
  target_include_directories(milepost_cudnn_frontend SYSTEM INTERFACE
    ${MILEPOST_cudnn_frontend_INCLUDE})
  target_link_libraries(milepost_cudnn_frontend INTERFACE milepost_cudnn)
  set(CMAKE_CUDA_COMPILER ${MILEPOST_NVCC})
  set(CMAKE_CUDA_ARCHITECTURES ${MILEPOST_CUDA_ARCHITECTURES})
  # The runtime is a library of its own, as for all who call it from C++.
  set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
  if(CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
  endif()
  enable_language(CUDA)
  # CMake 3.25 does not know of this one.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  string(APPEND CMAKE_CUDA_FLAGS " -O2 -lineinfo --expt-relaxed-constexpr")
  message(STATUS "CUDA: on: ${MILEPOST_NVCC}, for ${MILEPOST_CUDA_ARCHITECTURES}")
endif()

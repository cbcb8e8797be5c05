// A function that the kernels of both devices call.
#ifndef MILEPOST_ENGINE_OPS_CONTRACT_HOST_DEVICE_H_
#define MILEPOST_ENGINE_OPS_CONTRACT_HOST_DEVICE_H_

#if defined(__CUDACC__)
#define MP_HOST_DEVICE __host__ __device__ inline
#else
#define MP_HOST_DEVICE inline
#endif

#endif  // MILEPOST_ENGINE_OPS_CONTRACT_HOST_DEVICE_H_

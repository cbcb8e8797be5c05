// Defines MILEPOST_ASAN when AddressSanitizer is on, for every compiler: GCC has a macro for it,
// Clang a feature. The build defines MILEPOST_TSAN (cmake/MilepostTargets.cmake).
#ifndef MILEPOST_COMMON_SANITIZER_H_
#define MILEPOST_COMMON_SANITIZER_H_

#if defined(__SANITIZE_ADDRESS__)
#define MILEPOST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MILEPOST_ASAN 1
#endif
#endif

#endif  // MILEPOST_COMMON_SANITIZER_H_

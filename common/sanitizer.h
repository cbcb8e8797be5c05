// MILEPOST_ASAN is defined where AddressSanitizer instruments, whatever the compiler: GCC says so
// by a macro, Clang by a feature. MILEPOST_TSAN is the build's (cmake/MilepostTargets.cmake).
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

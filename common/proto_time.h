// google.protobuf.Timestamp <-> absl::Time, to the nanosecond. Pure and thread-safe.
//
// An unset Timestamp (all zero) gives absl::UnixEpoch(). IsSet tells it from a real time.
#ifndef MILEPOST_COMMON_PROTO_TIME_H_
#define MILEPOST_COMMON_PROTO_TIME_H_

#include <google/protobuf/timestamp.pb.h>

#include "absl/time/time.h"

namespace milepost {

inline google::protobuf::Timestamp ToProto(absl::Time time) {
  google::protobuf::Timestamp proto;
  const int64_t seconds = absl::ToUnixSeconds(time);
  proto.set_seconds(seconds);
  proto.set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(time - absl::FromUnixSeconds(seconds))));
  return proto;
}

inline absl::Time FromProto(const google::protobuf::Timestamp& proto) {
  return absl::FromUnixSeconds(proto.seconds()) + absl::Nanoseconds(proto.nanos());
}

inline bool IsSet(const google::protobuf::Timestamp& proto) {
  return proto.seconds() != 0 || proto.nanos() != 0;
}

}  // namespace milepost

#endif  // MILEPOST_COMMON_PROTO_TIME_H_

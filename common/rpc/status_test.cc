#include "common/rpc/status.h"

#include <gtest/gtest.h>

#include "common/error_details.h"

namespace milepost {
namespace {

TEST(StatusTest, DetailsTravel) {
  const absl::Status sent =
      RetryAfter(Refusal(v1::ERROR_REASON_RATE_LIMITED, "users/a", "too fast"), absl::Seconds(2));
  const grpc::Status carried = ToGrpcStatus(sent);
  EXPECT_EQ(carried.error_message(), "too fast");
  v1::RpcStatus details;
  ASSERT_TRUE(details.ParseFromString(carried.error_details()));
  EXPECT_EQ(details.code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(details.message(), "too fast");
  ASSERT_EQ(details.details_size(), 3);
  EXPECT_EQ(details.details(0).type_url(), "type.googleapis.com/google.rpc.ErrorInfo");
  EXPECT_EQ(details.details(1).type_url(), "type.googleapis.com/google.rpc.QuotaFailure");
  EXPECT_EQ(details.details(2).type_url(), "type.googleapis.com/google.rpc.RetryInfo");
  EXPECT_EQ(FromGrpcStatus(carried), sent);
}

TEST(StatusTest, WhatHasNoRoomInHeadersIsCut) {
  absl::Status status = Refusal(v1::ERROR_REASON_RATE_LIMITED, "users/a", std::string(5000, 'x'));
  v1::BadRequest large;
  large.add_field_violations()->set_description(std::string(5000, 'y'));
  SetDetail(large, &status);
  const grpc::Status carried = ToGrpcStatus(status);
  EXPECT_EQ(carried.error_message(), std::string(3000, 'x'));
  EXPECT_LT(carried.error_details().size(), 3300U);
  EXPECT_EQ(ReasonOf(FromGrpcStatus(carried)), v1::ERROR_REASON_RATE_LIMITED);
  const grpc::Status lines = ToGrpcStatus(absl::InternalError(std::string(5000, '\n')));
  EXPECT_EQ(lines.error_message().size(), 1000U) << "each is %0A";
  EXPECT_EQ(ToGrpcStatusWithoutDetails(status).error_message().size(), 3000U);
}

TEST(StatusTest, WhereDetailsAreLostTheMessageHasTheReason) {
  const grpc::Status carried = ToGrpcStatusWithoutDetails(
      Refusal(v1::ERROR_REASON_TOKEN_EXPIRED, "tokens/a", "tokens/a expired: ask for a new one"));
  EXPECT_EQ(carried.error_message(), "TOKEN_EXPIRED: tokens/a expired: ask for a new one");
  EXPECT_EQ(carried.error_details(), "");
  const absl::Status taken = FromGrpcStatus(carried);
  EXPECT_EQ(taken.message(), "tokens/a expired: ask for a new one");
  EXPECT_EQ(ReasonOf(taken), v1::ERROR_REASON_TOKEN_EXPIRED);
}

TEST(StatusTest, OtherMessagesStayAsTheyAre) {
  for (const char* message : {"JOB: x", "TOKEN_EXPIRED: of another code", "no colon", ": x", ""}) {
    const absl::Status status = absl::NotFoundError(message);
    EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status)), status);
    EXPECT_EQ(ToGrpcStatus(status).error_details(), "");
  }
  const absl::Status unknown = absl::UnknownError("cannot sync /x: no space");
  EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(unknown)), unknown);
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
}

}  // namespace
}  // namespace milepost

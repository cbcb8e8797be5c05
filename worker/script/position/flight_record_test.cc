#include "worker/script/position/flight_record.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "worker/script/position/unpickle.h"

namespace milepost::worker {
namespace {

using nlohmann::json;

// What PyTorch 2.15's _dump_fr_trace(True, False, False) gave on rank 0 of 3, with Gloo and a
// time-out of 8 s: three calls of all_reduce, one of broadcast in the group of ranks 0 and 1, and
// one more of all_reduce, to which rank 2 did not come.
constexpr absl::string_view kPickle =
    "gAJ9KFgHAAAAdmVyc2lvbnEAWAQAAAAyLjEwcQFYCQAAAHBnX2NvbmZpZ3ECfShYAAAAAHEDfShYBAAAAG5hbWVxBG"
    "gDWAQAAABkZXNjcQVoA1gFAAAAcmFua3NxBlgGAAAAWzAsIDFdcQd1dVgQAAAAY29tbV9saWJfdmVyc2lvbnEIaANY"
    "CQAAAHBnX3N0YXR1c3EJfShYAQAAADBxCn0oWBgAAABsYXN0X2VucXVldWVkX2NvbGxlY3RpdmVxC0sEWBcAAABsYX"
    "N0X3N0YXJ0ZWRfY29sbGVjdGl2ZXEMSv////9YGQAAAGxhc3RfY29tcGxldGVkX2NvbGxlY3RpdmVxDUsDdVgBAAAA"
    "MXEOfShoC0sBaAxK/////2gNSwF1dVgHAAAAZW50cmllc3EPXSh9KFgJAAAAcmVjb3JkX2lkcRBLAFgFAAAAcGdfaW"
    "RxEUsAWA0AAABwcm9jZXNzX2dyb3VwcRJoClgKAAAAZGVmYXVsdF9wZ3EThlgLAAAAdGhyZWFkX25hbWVxFFgGAAAA"
    "cHl0aG9ucRVYCQAAAHRocmVhZF9pZHEWWA8AAAAxMzk5OTE3NjA3MTQ2MjRxF1gRAAAAY29sbGVjdGl2ZV9zZXFfaW"
    "RxGEsBWAoAAABwMnBfc2VxX2lkcRlLAFgFAAAAb3BfaWRxGksBWA4AAABwcm9maWxpbmdfbmFtZXEbWA8AAABnbG9v"
    "OmFsbF9yZWR1Y2VxHFgPAAAAdGltZV9jcmVhdGVkX25zcR2KCNQVljPFDewYWAsAAABpbnB1dF9zaXplc3EeXShdKE"
    "sESwNlZVgMAAAAaW5wdXRfZHR5cGVzcR9dKFgFAAAARmxvYXRxIGVYDAAAAG91dHB1dF9zaXplc3EhXShdKEsESwNl"
    "ZVgNAAAAb3V0cHV0X2R0eXBlc3EiXShoIGVYBQAAAHN0YXRlcSNYCQAAAHNjaGVkdWxlZHEkWBoAAAB0aW1lX2Rpc2"
    "NvdmVyZWRfc3RhcnRlZF9uc3ElTlgcAAAAdGltZV9kaXNjb3ZlcmVkX2NvbXBsZXRlZF9uc3EmTlgHAAAAcmV0aXJl"
    "ZHEniFgKAAAAdGltZW91dF9tc3EoTUAfWAYAAABpc19wMnBxKYl1fShoEEsBaBFLAGgSaApoE4ZoFGgVaBZoF2gYSw"
    "JoGUsAaBpLAmgbaBxoHYoIho/hM8UN7BhoHl0oXShLBEsDZWVoH10oaCBlaCFdKF0oSwRLA2VlaCJdKGggZWgjaCRo"
    "JU5oJk5oJ4hoKE1AH2gpiXV9KGgQSwJoEUsAaBJoCmgThmgUaBVoFmgXaBhLA2gZSwBoGksDaBtoHGgdigiF/Bc0xQ"
    "3sGGgeXShdKEsESwNlZWgfXShoIGVoIV0oXShLBEsDZWVoIl0oaCBlaCNoJGglTmgmTmgniGgoTUAfaCmJdX0oaBBL"
    "A2gRSwFoEmgOWAkAAAB1bmRlZmluZWRxKoZoFGgVaBZoF2gYSwFoGUsAaBpLAWgbWA4AAABnbG9vOmJyb2FkY2FzdH"
    "EraB2KCPQCIzTFDewYaB5dKF0oSwRLA2VlaB9dKGggZWghXShdKEsESwNlZWgiXShoIGVoI2gkaCVOaCZOaCeIaChK"
    "QHcbAGgpiXV9KGgQSwRoEUsAaBJoCmgThmgUaBVoFmgXaBhLBGgZSwBoGksEaBtoHGgdigipviQ0xQ3sGGgeXShdKE"
    "sESwNlZWgfXShoIGVoIV0oXShLBEsDZWVoIl0oaCBlaCNoJGglTmgmTmgniWgoTUAfaCmJdWV1cSwu";
constexpr int64_t kLastCallNs = 1795825492048527017;

json Fixture() {
  std::string bytes;
  EXPECT_TRUE(absl::Base64Unescape(kPickle, &bytes));
  const auto record = Unpickle(bytes);
  EXPECT_TRUE(record.ok()) << record.status();
  return record.value_or(json());
}

TEST(FlightRecordTest, APicklesCallThatWaitsIsFound) {
  const auto positions = ReadRecord(Fixture(), "gloo", {kLastCallNs + 7'999'000'000});
  ASSERT_EQ(positions.size(), 2u);
  EXPECT_EQ(positions[0].group(), "gloo:0");
  EXPECT_EQ(positions[0].description(), "default_pg");
  EXPECT_EQ(positions[0].begun(), 4);
  EXPECT_EQ(positions[0].completed(), 3);
  EXPECT_EQ(positions[0].call(), "all_reduce of Float[4, 3]");
  EXPECT_FALSE(positions[0].timed_out());
  EXPECT_EQ(positions[1].group(), "gloo:1");
  EXPECT_EQ(positions[1].begun(), 1);
  EXPECT_EQ(positions[1].completed(), 1);
  EXPECT_EQ(positions[1].call(), "") << "nobody waits in it";
  EXPECT_TRUE(ReadRecord(Fixture(), "gloo", {kLastCallNs + 8'000'000'000})[0].timed_out());
}

// A rank that computes for long after a call has not waited in it. Where it failed, nobody knows.
TEST(FlightRecordTest, ACallThatHasEndedTimesOutOnlyWhereAnExceptionEndedTheProcess) {
  json record = Fixture();
  record["pg_status"]["0"]["last_completed_collective"] = 4;
  const int64_t late = kLastCallNs + 8'000'000'000;
  EXPECT_FALSE(ReadRecord(record, "gloo", {late})[0].timed_out());
  EXPECT_TRUE(ReadRecord(record, "gloo", {late, /*failed=*/true})[0].timed_out());
  EXPECT_TRUE(ReadRecords({{"time_ns", late}, {"failed", true}, {"gloo", record}})[0].timed_out());
}

json Entry(const std::string& group, int call, int id) {
  return {{"process_group", {group, group == "0" ? "default_pg" : "mesh_dp"}},
          {"pg_id", id},
          {"collective_seq_id", call},
          {"profiling_name", "nccl:_all_gather_base"},
          {"input_sizes", {{8}, {2, 2}}},
          {"time_created_ns", 5},
          {"timeout_ms", 1}};
}

json Status(int begun, int completed) {  // as JSON its numbers are texts
  return {{"last_enqueued_collective", absl::StrCat(begun)},
          {"last_completed_collective", absl::StrCat(completed)}};
}

// A status is found by the group's id, which is another one on each rank. Names may be digests.
TEST(FlightRecordTest, JsonOfBothBackends) {
  json nccl = {{"entries", {Entry("2", 8, 1), Entry("2", 9, 1), Entry("f3a", 3, 2)}},
               {"pg_status", {{"1", Status(9, 7)}, {"2", Status(3, 3)}}}};
  nccl["entries"].push_back({{"is_p2p", true}, {"collective_seq_id", 70}});
  const auto positions = ReadRecords({{"time_ns", 2'000'005}, {"gloo", Fixture()}, {"nccl", nccl}});
  ASSERT_EQ(positions.size(), 5u);
  EXPECT_EQ(positions[2].group(), "nccl:2");
  EXPECT_EQ(positions[2].begun(), 9);
  EXPECT_EQ(positions[2].completed(), 7);
  EXPECT_EQ(positions[2].call(), "_all_gather_base of 2 tensors");
  EXPECT_TRUE(positions[2].timed_out());
  EXPECT_EQ(positions[3].group(), "nccl:f3a");
  EXPECT_EQ(positions[3].completed(), 3);
  // It has called nothing in the group of all ranks, and that is known.
  EXPECT_EQ(positions[4].group(), "nccl:0");
  EXPECT_EQ(positions[4].description(), "default_pg");
  EXPECT_EQ(positions[4].begun(), 0);
}

TEST(FlightRecordTest, OfGroupsThatWereMadeAnewTheNewestCounts) {
  const json record = {{"entries", {Entry("0", 10, 0), Entry("0", 1, 4), Entry("0", 2, 4)}},
                       {"pg_status", {{"0", Status(10, 10)}, {"4", Status(2, 1)}}}};
  const auto positions = ReadRecord(record, "gloo", {1});
  ASSERT_EQ(positions.size(), 1u);
  EXPECT_EQ(positions[0].begun(), 2);
  EXPECT_EQ(positions[0].completed(), 1);
}

TEST(FlightRecordTest, KeepsTheGroupsThatSayMost) {
  std::vector<v1::CollectivePosition> positions(20);
  for (int i = 0; i < 20; ++i) positions[i].set_group(absl::StrCat(i));
  positions[17].set_description("default_pg");
  positions[18].set_begun(1);
  positions[19].set_timed_out(true);
  KeepTelling(&positions);
  ASSERT_EQ(positions.size(), static_cast<size_t>(kMostCollectiveGroups));
  EXPECT_EQ(positions[0].group(), "17");
  EXPECT_EQ(positions[1].group(), "18");
  EXPECT_EQ(positions[2].group(), "19");
}

TEST(FlightRecordTest, OtherJsonSaysNothing) {
  for (const char* text :
       {"null", "[]", "3", R"({"entries": 3})", R"({"entries": [3, [], {}, null]})",
        R"({"entries": [{"collective_seq_id": "x", "process_group": 4}]})",
        R"({"entries": [{"collective_seq_id": -1}]})"}) {
    for (const auto& position : ReadRecord(json::parse(text), "gloo", {1})) {
      EXPECT_EQ(position.begun(), 0) << text;
    }
    EXPECT_TRUE(ReadRecords(json::parse(text)).empty()) << text;
  }
  const json odd = json::parse(R"({"entries": [{"collective_seq_id": 9223372036854775807,
      "process_group": ["0", "default_pg"], "pg_id": 0, "input_sizes": [3],
      "time_created_ns": -9223372036854775807,
      "timeout_ms": 9223372036854775807}], "pg_status": {"0": {"last_completed_collective":
      9223372036854775807}}})");
  const auto positions = ReadRecord(odd, "gloo", {INT64_MAX, true});
  ASSERT_EQ(positions.size(), 1u);
  EXPECT_FALSE(positions[0].timed_out());
}

}  // namespace
}  // namespace milepost::worker

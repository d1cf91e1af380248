// The worked example of docs/hub.md is what we write, and read.
#include <gtest/gtest.h>

#include "dgc/wire.h"
#include "hub/packet.h"
#include "support/document.h"

namespace dgc {
namespace {

TEST(HubPacket, TheWorkedExampleOfTheDocument) {
  const hub::Bytes bytes = test::hex_in_document(DGC_HUB_DOC);
  const hub::Packet packet = hub::read_packet(bytes);
  ASSERT_EQ(packet.blobs.size(), 2u);
  const CheckedMessage message(packet.blob(0));
  const std::vector<Entries> frames = decode_entries(message, 100);
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].values, (std::vector<float>{0.5f, -1.0f, 0.0f}));
  const nlohmann::json head = {
      {"session", "5f1c"}, {"sequence", 9}, {"base", 12},     {"have", 12},       {"saved", 8},
      {"examples", 8},     {"loss", 0.5},   {"seconds", 1.5}, {"residual", 0.25}, {"rtt", 0.0125}};
  EXPECT_EQ(hub::write_packet(head, packet.blobs), bytes);
}

}  // namespace
}  // namespace dgc

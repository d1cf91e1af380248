// The worked example of docs/hub.md is what we write, and read.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "dgc/wire.h"
#include "hub/packet.h"

namespace dgc {
namespace {

hub::Bytes example_of_document() {
  std::ifstream document(DGC_HUB_DOC);
  hub::Bytes packet;
  std::string line;
  bool inside = false;
  while (std::getline(document, line)) {
    if (line.starts_with("```")) {
      inside = line == "```hex";
      continue;
    }
    std::istringstream words(line);
    std::string word;
    while (inside && words >> word) {
      packet.push_back(static_cast<std::byte>(std::stoul(word, nullptr, 16)));
    }
  }
  return packet;
}

TEST(HubPacket, TheWorkedExampleOfTheDocument) {
  const hub::Bytes bytes = example_of_document();
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

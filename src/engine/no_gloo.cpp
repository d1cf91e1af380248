#include "dgc/engines.h"
#include "engine/compiled.h"
#include "engine/native.h"

namespace dgc {

bool detail::has_gloo() noexcept { return false; }

bool native_all_reduce(Group&, std::span<float>) { return false; }

bool is_open_to_strangers(const Group&) noexcept { return false; }

std::unique_ptr<Group> make_gloo_group(std::shared_ptr<RendezvousStore>, const GlooOptions&) {
  throw Error(ErrorCode::engine_unavailable, "gloo", "engine", "is not in this build of dgc",
              "install libgloo-dev and configure with -DDGC_WITH_GLOO=ON");
}

}  // namespace dgc

#include "exchange/context.h"

namespace dgc::exchange {

Load Context::load_of(std::size_t tensor, std::uint64_t step) const {
  return exchange::load_of(state.tensors()[tensor], compressor.options(), step);
}

ValueType Context::values_of(const Load& load) const {
  return exchange::values_of(compressor.options(), load);
}

std::uint64_t Context::frame_bound_of(std::size_t tensor, std::uint64_t step) const {
  const Load load = load_of(tensor, step);
  const bool whole = load.entries == load.elements;
  return frame_bound(load.elements, load.entries, values_of(load),
                     whole ? IndexCoding::automatic : compressor.options().indices);
}

PhaseMeter::PhaseMeter(const Group& group, Contents& contents, std::string name)
    : group_(group), contents_(contents), name_(std::move(name)), before_(group.traffic()) {}

PhaseMeter::~PhaseMeter() { add_phase(contents_.phases, {name_, group_.traffic() - before_}); }

void add_phase(std::vector<Phase>& phases, const Phase& one) {
  for (Phase& phase : phases) {
    if (phase.name != one.name) continue;
    phase.traffic = phase.traffic + one.traffic;
    return;
  }
  phases.push_back(one);
}

}  // namespace dgc::exchange

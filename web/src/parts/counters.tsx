import { count } from "../format";
import type { Snapshot } from "../types";

/** Totals under the names that /metrics gives them. */
export function Counters({ snapshot }: { snapshot: Snapshot }) {
  const { stats, seconds: parts } = snapshot;
  const rows: [string, number][] = [
    ["vllm:num_requests_running", stats.num_running],
    ["vllm:num_requests_waiting", stats.num_waiting],
    ["vllm:prompt_tokens_total", stats.prompt_tokens],
    ["vllm:generation_tokens_total", stats.generation_tokens],
    ["vllm:prefix_cache_queries_total", stats.prefix_cache_queries],
    ["vllm:prefix_cache_hits_total", stats.prefix_cache_hits],
    ["vllm:num_preemptions_total", stats.num_preemptions],
    ["quire:requests_rejected_total", stats.rejected],
    ...Object.entries(stats.finished).map(([reason, n]): [string, number] => [
      `vllm:request_success_total{finished_reason="${reason}"}`,
      n,
    ]),
  ];
  return (
    <details class="panel wide counters">
      <summary>Counters since the start, as in /metrics</summary>
      <div class="columns">
        <table>
          <tbody>
            {rows.map(([name, value]) => (
              <tr key={name}>
                <th scope="row">
                  <code>{name}</code>
                </th>
                <td data-metric={name}>{count(value)}</td>
              </tr>
            ))}
          </tbody>
        </table>
        <table>
          <tbody>
            {Object.entries(parts).map(([part, value]) => (
              <tr key={part}>
                <th scope="row">
                  <code>{`quire:time_seconds_total{part="${part}"}`}</code>
                </th>
                <td data-part={part}>{value.toFixed(3)} s</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </details>
  );
}

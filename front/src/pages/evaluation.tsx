// The results of an evaluation, each metric with its confidence interval.
import type { JSX } from "preact";
import { address, useApi } from "../api";
import type { Metric, Metrics } from "../api";
import { common, interval, Whisker } from "../charts/interval";
import { count, decimals, number, score, seconds } from "../format";
import { Facts, Panel, Settings, When } from "../parts/bits";
import { Empty, Given } from "../parts/states";
import { Name } from "../parts/text";
import { embedded } from "../embedded";
import { Link } from "../route";

export function Measured({ id }: { id: string }): JSX.Element {
  const answer = useApi<Metrics>(address(id, "metrics"));
  return (
    <Given answer={answer}>
      {(data) => {
        const judged = data.metrics.filter((metric) => metric.low !== null && metric.high !== null);
        const others = data.metrics.filter((metric) => metric.low === null || metric.high === null);
        return (
          <>
            <Panel title="Results" more={embedded && !embedded.about.compare ? undefined : <Link to={`/compare?a=${encodeURIComponent(id)}`}>Compare with another evaluation</Link>}>
              {judged.length ? <Judged metrics={judged} /> : <Empty title="The evaluation has not finished yet." />}
              {data.limit && <p class="note">Stopped early: <Name value={data.limit} /></p>}
              <Facts facts={[
                ["samples", <span class="number">{count(data.samples)}</span>], ["duration", <span class="number">{seconds(data.seconds)}</span>],
                ["finished", <When at={data.finished_at} />],
              ]} />
            </Panel>
            <Panel title="Other metrics" more={<span class="panel-note">{count(others.length)}</span>}>
              <div class="counted" tabIndex={0} role="region" aria-label="Other metrics, table">
                <table class="tight">
                  <tbody>
                    {others.map((metric) => <tr key={metric.name}><th scope="row"><Name value={bare(metric.name)} /></th><td class="right number">{number(metric.value, 4)}</td></tr>)}
                  </tbody>
                </table>
              </div>
              {data.generation_parameters && <details><summary>Generation parameters</summary><Settings value={data.generation_parameters} /></details>}
            </Panel>
          </>
        );
      }}
    </Given>
  );
}

function Judged({ metrics }: { metrics: Metric[] }): JSX.Element {
  const range = common(metrics.flatMap((metric) => [metric.value, metric.low, metric.high]));
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Results, table">
      <table class="tight">
        <thead><tr><th>Metric</th><th class="right">Value</th><th>95% interval</th><th class="whiskers">{score(range[0])}<span>{score(range[1])}</span></th></tr></thead>
        <tbody>
          {metrics.map((metric) => (
            <tr key={metric.name}>
              <th scope="row"><Name value={bare(metric.name)} /></th>
              <td class="right number strong">{score(metric.value, decimals(metric.low, metric.high))}</td>
              <td>{interval(metric.low, metric.high)}</td>
              <td><Whisker {...metric} range={range} /></td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function bare(name: string): string {
  return name.startsWith("eval/") ? name.slice(5) : name;
}

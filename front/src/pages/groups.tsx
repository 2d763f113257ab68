// The groups of a source: one row an item that was tried, its scores side by side.
import type { JSX } from "preact";
import { address, useApi, withQuery } from "../api";
import type { GroupRow, Page } from "../api";
import { count, score, words } from "../format";
import { Scores, used, When } from "../parts/bits";
import { Head, useSource } from "../parts/head";
import { Pages, ROWS } from "../parts/pages";
import { Empty, Given } from "../parts/states";
import { Line, Name } from "../parts/text";
import { changed, go, Link, link, usePlace } from "../route";

const SORTS: [string, string][] = [["", "file order"], ["-n", "newest first"], ["-mean", "highest mean"], ["mean", "lowest mean"], ["-spread", "widest spread"]];

export function Groups({ source: id }: { source: string }): JSX.Element {
  const source = useSource(id);
  const { query } = usePlace();
  const path = withQuery(address(id, "groups"), { limit: ROWS, after: query.get("after"), sort: query.get("sort"), step: query.get("step") });
  const answer = useApi<Page<GroupRow>>(path, source.data?.indexing ? 2000 : null);
  return (
    <div class="page">
      <Head source={source.data} now="Groups" id={id} />
      <div class="filters">
        {query.get("step") === null ? <Sort sorts={SORTS} /> : (
          <>
            <p>Groups that training step <b class="number">{query.get("step")}</b> used</p>
            <button type="button" class="quiet" onClick={() => go(changed({ step: null }))}>Show all groups</button>
          </>
        )}
      </div>
      <Given answer={answer}>
        {(page) => page.rows.length ? (
          <>
            <div class="scroll" tabIndex={0} role="region" aria-label="Groups, table">
              <table>
                <thead>
                  <tr><th class="right">Draw</th><th>Item</th><th>Scores</th><th class="right">Mean</th><th class="right">Spread</th><th class="right">Rollouts</th><th>Flags</th>{page.rows.some((row) => row.use) && <th>Training</th>}<th class="right">Created</th></tr>
                </thead>
                <tbody>{page.rows.map((row) => <Row key={row.id} source={id} row={row} use={page.rows.some((one) => one.use)} />)}</tbody>
              </table>
            </div>
            <Pages page={page} one="group" />
          </>
        ) : <Empty title={query.get("step") === null ? "No groups yet." : "No recorded group belongs to this step."} />}
      </Given>
    </div>
  );
}

function Row({ source, row, use }: { source: string; row: GroupRow; use: boolean }): JSX.Element {
  return (
    <tr>
      <td class="right number muted">{count(row.draw)}</td>
      <th scope="row" class="main"><Link row to={link(source, "groups", row.id)}><Line value={row.title || row.item_id} /></Link></th>
      <td><Scores values={row.scores} /></td>
      <td class="right number strong">{score(row.mean)}</td>
      <td class="right number">{score(row.spread)}</td>
      <td class="right number">{count(row.rollouts)}</td>
      <td class="apart">
        {row.withheld && <span class="flag">{words(row.withheld)}</span>}
        {[...new Set(row.failures)].slice(0, 3).map((cause) => <span key={cause} class="flag bad"><Name value={cause} /></span>)}
      </td>
      {use && <td class="muted">{used(row.use) ?? "–"}</td>}
      <td class="right"><When at={row.created_at} /></td>
    </tr>
  );
}

export function Sort({ sorts }: { sorts: [string, string][] }): JSX.Element {
  const { query } = usePlace();
  return (
    <label>
      <span>Order</span>
      <select value={query.get("sort") ?? ""} onChange={(event) => go(changed({ sort: event.currentTarget.value, after: null }))}>
        {sorts.map(([value, name]) => <option key={value} value={value}>{name}</option>)}
      </select>
    </label>
  );
}

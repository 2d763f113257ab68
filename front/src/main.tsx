// The viewer's pages, in one place: which address shows which.
import { render } from "preact";
import type { JSX } from "preact";
import "./style/base.css";
import "./style/layout.css";
import "./style/tables.css";
import "./style/text.css";
import "./style/charts.css";
import "./style/rollout.css";
import { listen } from "./keys";
import { Compare } from "./pages/compare";
import { GroupPage } from "./pages/group";
import { Groups } from "./pages/groups";
import { HomePage } from "./pages/home";
import { LogsPage } from "./pages/logs";
import { Overlay } from "./pages/overlay";
import { RolloutPage } from "./pages/rollout";
import { Rollouts } from "./pages/rollouts";
import { SourcePage } from "./pages/source";
import { usePlace } from "./route";
import { Shell } from "./shell";
import { Missing } from "./parts/states";
import { setTheme, theme } from "./theme";

function App(): JSX.Element {
  const { path } = usePlace();
  return <Shell>{page(path)}</Shell>;
}

function page(path: string[]): JSX.Element {
  const [first, source, list, id] = path;
  if (first === undefined) return <HomePage />;
  if (first === "compare" && path.length === 1) return <Compare />;
  if (first === "overlay" && path.length === 1) return <Overlay />;
  if (first === "s" && source !== undefined) {
    if (list === undefined) return <SourcePage key={source} source={source} />;
    if (list === "logs" && id === undefined) return <LogsPage key={source} source={source} />;
    if (list === "groups" && id === undefined) return <Groups key={source} source={source} />;
    if (list === "rollouts" && id === undefined) return <Rollouts key={source} source={source} />;
    if (list === "groups" && id !== undefined && path.length === 4) return <GroupPage key={id} source={source} id={id} />;
    if (list === "rollouts" && id !== undefined && path.length === 4) return <RolloutPage key={id} source={source} id={id} />;
  }
  return <Missing />;
}

setTheme(theme());
listen();
const root = document.getElementById("app");
if (root) render(<App />, root);

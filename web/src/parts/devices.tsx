// What the machine's own instruments say, where they can be read.
import { bytes, percent } from "../format";
import { recent, type Sample } from "../history";
import type { DeviceReading } from "../types";
import { Panel } from "./panel";

interface Props {
  readings: DeviceReading[];
  history: readonly Sample[];
}

type Reading = (d: DeviceReading, tokensASecond: number | undefined) => string | null;

/** A column that no device fills is left out. */
const COLUMNS: [string, Reading][] = [
  ["in use", (d) => (d.utilization === null ? null : percent(d.utilization))],
  ["power", (d) => unit(d.power_w, "W")],
  ["energy per token", (d, speed) => unit(perToken(d.power_w, speed), "J")],
  ["temperature", (d) => unit(d.temperature_c, "°C")],
  ["clock", (d) => unit(d.frequency_mhz, "MHz")],
  ["memory", memory],
];

export function Devices({ readings, history }: Props) {
  if (!readings.length) return null;
  const now = recent(history, 10);
  const columns = COLUMNS.filter(([, format]) => readings.some((d) => format(d, 1)));
  return (
    <Panel title="Devices" class="wide">
      <div class="scroll">
        <table>
          <thead>
            <tr>
              {["Device", ...columns.map(([title]) => title)].map((title) => (
                <th key={title} scope="col">
                  {title}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {readings.map((d) => (
              <tr key={d.name}>
                <th scope="row">{d.name}</th>
                {columns.map(([title, format]) => (
                  <td key={title}>{format(d, now?.generated) ?? "–"}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Panel>
  );
}

function perToken(watts: number | null, tokensASecond: number | undefined): number | null {
  return watts !== null && tokensASecond ? watts / tokensASecond : null;
}

function unit(value: number | null, name: string): string | null {
  if (value === null) return null;
  return `${value.toFixed(value < 10 ? 2 : 0)} ${name}`;
}

function memory({ memory_used: used, memory_total: total }: DeviceReading): string | null {
  if (used === null || total === null) return null;
  const [most, unit] = bytes(total).split(" ");
  return `${bytes(used).replace(` ${unit}`, "")} of ${most} ${unit}`;
}

// What the machine's own instruments say, where they can be read.
import { bytes, percent } from "../format";
import { recent, type Sample } from "../history";
import type { DeviceReading } from "../types";
import { Panel } from "./panel";

interface Props {
  readings: DeviceReading[];
  history: readonly Sample[];
}

export function Devices({ readings, history }: Props) {
  if (!readings.length) return null;
  const now = recent(history, 10);
  return (
    <Panel title="Devices" class="wide">
      <div class="scroll">
        <table>
          <thead>
            <tr>
              {[
                "Device",
                "in use",
                "power",
                "energy per token",
                "temperature",
                "clock",
                "memory",
              ].map((title) => (
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
                <td>{percent(d.utilization)}</td>
                <td>{unit(d.power_w, "W")}</td>
                <td>{unit(perToken(d.power_w, now?.generated), "J")}</td>
                <td>{unit(d.temperature_c, "°C")}</td>
                <td>{unit(d.frequency_mhz, "MHz")}</td>
                <td>{memory(d)}</td>
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

function unit(value: number | null, name: string): string {
  if (value === null) return "unavailable";
  return `${value.toFixed(value < 10 ? 2 : 0)} ${name}`;
}

function memory({ memory_used: used, memory_total: total }: DeviceReading): string {
  if (used === null || total === null) return "unavailable";
  return `${bytes(used)} of ${bytes(total)}`;
}

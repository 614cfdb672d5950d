"""torch_geometric: convolutions and attention on a graph with a node that has no neighbour.

Bug: messages are normalized by degree, which is zero for that node.
"""

import sys

import torch
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, GCNConv, SAGEConv, global_mean_pool
from torch_geometric.utils import degree

HAS_BUG = "--bug" in sys.argv
torch.manual_seed(0)


def graph(nodes):
    edges = torch.randint(0, nodes - 1, (2, 3 * nodes))  # the last node is alone
    return Data(x=torch.randn(nodes, 8), edge_index=edges, y=torch.randint(0, 2, (1,)))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gcn, self.gat, self.sage = GCNConv(8, 16), GATConv(16, 8, heads=2), SAGEConv(16, 16)
        self.out = torch.nn.Linear(16, 2)

    def forward(self, data):
        x = self.gcn(data.x, data.edge_index).relu()
        if HAS_BUG:
            norm = 1 / degree(data.edge_index[0], data.num_nodes)  # expect: aten::reciprocal
            x = x * norm[:, None]
        x = self.sage(self.gat(x, data.edge_index).relu(), data.edge_index)
        return self.out(global_mean_pool(x, data.batch))


batch, net = Batch.from_data_list([graph(6), graph(9)]), Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for _ in range(5):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(net(batch), batch.y)
    loss.backward()
    optimizer.step()
print(loss.item())

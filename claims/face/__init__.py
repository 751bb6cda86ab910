"""The misplaced face as a page: parts that can be dragged, and what two networks make of them.

python -m claims.face --output face.html
python -m claims.face --train               # train both networks anew, about ten minutes
"""
